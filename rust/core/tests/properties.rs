//! Properties of placement that hold for every input.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use shoal_core::WorkerAddress;
use shoal_core::placement::{
    NodeGroup, NodeResources, Placement, Placements, parse_placement, place_flexible, place_nodes,
    place_packed,
};

fn cluster(sizes: &[u32]) -> Vec<Arc<NodeGroup>> {
    let nodes = (0..)
        .zip(sizes)
        .map(|(rank, &size)| NodeResources::new(rank, size, size, "NV_GPU"))
        .collect();
    vec![Arc::new(NodeGroup::new(
        "cluster",
        Some("Accelerator"),
        nodes,
    ))]
}

fn sizes() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0_u32..9, 1..6)
}

/// Checks the properties of every answer of the solver.
fn check(placements: &Placements) -> Result<(), TestCaseError> {
    let placements: Vec<Placement> = placements.iter().collect();
    let mut nodes: BTreeMap<u32, Vec<&Placement>> = BTreeMap::new();
    for (rank, placement) in placements.iter().enumerate() {
        prop_assert_eq!(placement.rank as usize, rank);
        nodes
            .entry(placement.cluster_node_rank)
            .or_default()
            .push(placement);
    }
    let mut used: Vec<u32> = Vec::new();
    for placement in &placements {
        if !used.contains(&placement.cluster_node_rank) {
            used.push(placement.cluster_node_rank);
        }
        let index = used
            .iter()
            .position(|&node| node == placement.cluster_node_rank);
        prop_assert_eq!(Some(placement.placement_node_rank as usize), index);
        let first = placement
            .visible_accelerators
            .first()
            .map_or("-1", String::as_str);
        prop_assert_eq!(placement.local_accelerator_rank.to_string(), first);
    }
    for mates in nodes.values() {
        for (local, placement) in mates.iter().enumerate() {
            prop_assert_eq!(placement.local_rank as usize, local);
            prop_assert_eq!(placement.local_world_size as usize, mates.len());
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_text_breaks_the_address_parser(text in "[-0-9al:, é]{0,12}|\\PC{0,8}") {
        if let Err(error) = text.parse::<WorkerAddress>() {
            prop_assert!(error.span.end <= text.chars().count());
            prop_assert!(error.to_string().contains('^'));
        }
    }

    #[test]
    fn wrong_parts_give_the_same_error_as_numbers_and_as_texts(
        root in "[a:]{0,2}",
        path in prop::collection::vec(2_147_483_640_u32..2_147_483_655, 0..3),
    ) {
        let ranks: Vec<String> = path.iter().map(u32::to_string).collect();
        prop_assert_eq!(
            WorkerAddress::from_ranks(&root, path),
            WorkerAddress::new(&root, &ranks)
        );
    }

    #[test]
    fn an_address_survives_its_text(
        root in "[^:]{1,8}",
        path in prop::collection::vec(0_u32..=2_147_483_647, 0..5),
    ) {
        let ranks: Vec<String> = path.iter().map(u32::to_string).collect();
        let address = WorkerAddress::new(&root, &ranks).unwrap();
        prop_assert_eq!(WorkerAddress::from_ranks(&root, path.clone()), Ok(address.clone()));
        prop_assert_eq!(address.root_group_name(), &root);
        prop_assert_eq!(address.rank_path(), &path);
        prop_assert_eq!(address.name().parse::<WorkerAddress>(), Ok(address.clone()));
        if let Some(parent) = address.parent() {
            prop_assert_eq!(parent.child(&address.rank().to_string()), Ok(address.clone()));
            prop_assert!(parent < address);
        }
    }

    #[test]
    fn a_parsed_placement_can_be_placed(
        text in "(all|[0-9]|[0-4]-[5-9])(/[1-4])?(![0-9])?(:0-[0-9]{1,2})?(,[0-9]{1,2}(-[0-9]{2})?)?",
        sizes in sizes(),
    ) {
        let groups = cluster(&sizes);
        if let Ok(ranks) = parse_placement(&text, &groups, "c") {
            let placed = place_flexible(&groups, &ranks, true).unwrap();
            prop_assert_eq!(placed.len(), ranks.len());
            check(&placed)?;
        }
    }

    #[test]
    fn packed_processes_share_nothing_and_stay_on_their_node(
        sizes in sizes(),
        start in 0_u32..20,
        count in 1_u32..20,
        size in 1_u32..4,
        stride in 1_u32..4,
    ) {
        let (size, stride) = (NonZeroU32::new(size).unwrap(), NonZeroU32::new(stride).unwrap());
        let groups = cluster(&sizes);
        let total: u32 = sizes.iter().sum();
        let end = start + count - 1;
        if let Ok(placed) = place_packed(&groups, start, end, size, stride, true) {
            check(&placed)?;
            prop_assert!(end < total);
            let mut owned: Vec<(u32, u32)> = placed
                .iter()
                .flat_map(|p| p.local_hardware_ranks.into_iter().map(move |r| (p.cluster_node_rank, r)))
                .collect();
            for &(node, rank) in &owned {
                prop_assert!(rank < sizes[node as usize]);
            }
            prop_assert_eq!(owned.len(), count as usize);
            owned.sort_unstable();
            owned.dedup();
            prop_assert_eq!(owned.len(), count as usize, "a device was given out twice");
        }
    }

    #[test]
    fn node_placements_count_each_node_right(
        sizes in sizes(),
        ranks in prop::collection::vec(0_u32..6, 1..20),
    ) {
        match place_nodes(&cluster(&sizes), &ranks, true) {
            Ok(placed) => {
                check(&placed)?;
                let nodes: Vec<u32> = placed.iter().map(|p| p.cluster_node_rank).collect();
                prop_assert_eq!(nodes, ranks);
            }
            Err(_) => prop_assert!(ranks.iter().any(|&rank| rank as usize >= sizes.len())),
        }
    }

    #[test]
    fn whole_nodes_share_processes_evenly(nodes in 1_u32..6, processes in 1_u32..40) {
        let all = (0..nodes).map(|rank| NodeResources::new(rank, 0, 0, "NO_ACCEL")).collect();
        let groups = [Arc::new(NodeGroup::new("node", None, all))];
        let text = format!("0-{}:0-{}", nodes - 1, processes - 1);
        match parse_placement(&text, &groups, "agent") {
            Ok(ranks) => {
                let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
                for process in ranks.iter() {
                    *counts.entry(process[0]).or_default() += 1;
                }
                let counts: Vec<u32> = counts.into_values().collect();
                prop_assert_eq!(counts.len(), nodes as usize);
                prop_assert_eq!(counts.iter().sum::<u32>(), processes);
                prop_assert!(counts.windows(2).all(|pair| pair[0] >= pair[1]));
                prop_assert!(counts[0] - counts[counts.len() - 1] <= 1);
            }
            Err(_) => prop_assert!(processes < nodes),
        }
    }
}
