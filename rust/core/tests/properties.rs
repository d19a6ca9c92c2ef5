//! Properties of placement that hold for every input. The parser gets any text: a bounded version of
//! `rust/fuzz`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use shoal_core::placement::{
    NodeGroup, NodeResources, Placement, Placements, RankLists, parse_placement, place_flexible,
    place_nodes, place_packed,
};

fn groups(sizes: &[u32], whole: bool) -> Vec<Arc<NodeGroup>> {
    let nodes = (0..)
        .zip(sizes)
        .map(|(rank, &size)| NodeResources::new(rank, size, size, "NV_GPU"))
        .collect();
    let kind = (!whole).then_some("Accelerator");
    vec![Arc::new(NodeGroup::new("cluster", kind, nodes))]
}

fn cluster(sizes: &[u32]) -> Vec<Arc<NodeGroup>> {
    groups(sizes, false)
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

fn clusters() -> impl Strategy<Value = Vec<Arc<NodeGroup>>> {
    (sizes(), any::<bool>()).prop_map(|(sizes, whole)| groups(&sizes, whole))
}

/// Texts that follow the grammar, though not always the other rules.
fn specs() -> impl Strategy<Value = String> {
    let number = prop_oneof![0_u64..12, Just(1_048_575), Just(99_999_999_999)];
    let range = prop_oneof![
        number.clone().prop_map(|n| n.to_string()),
        (number, 0_u64..9).prop_map(|(first, more)| format!("{first}-{}", first + more)),
    ];
    let step = prop_oneof![3 => Just(String::new()), 1 => (0_u32..5).prop_map(|n| format!("/{n}"))];
    let out = prop::collection::vec(range.clone().prop_map(|r| format!("!{r}")), 0..3);
    let processes = prop_oneof![
        Just(String::new()),
        range.clone().prop_map(|r| format!(":{r}")),
        (0_u32..40).prop_map(|n| format!(":0-{n}")),
    ];
    let base = prop_oneof![Just("all".to_owned()), range];
    let segment = (base, step, out, processes).prop_map(|(base, step, out, processes)| {
        format!("{base}{step}{}{processes}", out.concat())
    });
    prop::collection::vec(segment, 1..4).prop_map(|segments| segments.join(","))
}

/// Any text, near misses most of all.
fn texts() -> impl Strategy<Value = String> {
    let odd = "[-0-9al:,!/ \t;.\\[\\]*^%~…–０９：　組é\u{301}\u{202E}\u{1F}\u{200B}]{0,12}";
    let slip = (specs(), 0_usize..30, odd).prop_map(|(spec, at, odd)| {
        let (head, tail) = spec.split_at(at.min(spec.len()));
        format!("{head}{odd}{tail}")
    });
    prop_oneof![3 => slip, 1 => odd, 1 => "\\PC{0,8}", 1 => any::<String>(), 1 => "[0-9,]{90,200}"]
}

/// Writes placements as a string that is parsed to the same placements.
fn print(lists: &RankLists, whole: bool) -> String {
    let mut segments: Vec<String> = Vec::new();
    let mut process = 0;
    while process < lists.len() {
        let ranks = lists.get(process);
        let (first, last) = (ranks[0], ranks[ranks.len() - 1]);
        let same = (process..lists.len())
            .take_while(|&p| lists.get(p) == ranks)
            .count();
        let holes: Vec<String> = (first..=last)
            .filter(|rank| !ranks.contains(rank))
            .map(|rank| format!("!{rank}"))
            .collect();
        assert!(!whole || ranks.len() == 1);
        let end = process + same - 1;
        segments.push(format!("{first}-{last}{}:{process}-{end}", holes.concat()));
        process += same;
    }
    segments.join(" , ")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_text_is_a_placement_or_an_error_that_points(text in texts(), groups in clusters()) {
        let whole = groups[0].hardware_type.is_none();
        let total: usize = if whole {
            groups[0].nodes.len()
        } else {
            groups[0].nodes.iter().map(|node| node.num_hardware as usize).sum()
        };
        match parse_placement(&text, &groups, "c") {
            Ok(lists) => {
                prop_assert!(!lists.is_empty());
                let mut before = 0;
                for ranks in lists.iter() {
                    prop_assert!(!ranks.is_empty());
                    prop_assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]));
                    prop_assert!(ranks[0] >= before, "processes follow resources");
                    prop_assert!((ranks[ranks.len() - 1] as usize) < total);
                    prop_assert!(!whole || ranks.len() == 1);
                    before = ranks[0];
                }
                let unique: BTreeSet<u32> = lists.iter().flatten().copied().collect();
                prop_assert_eq!(lists.unique(), unique.into_iter().collect::<Vec<_>>());
                let again = parse_placement(&print(&lists, whole), &groups, "c");
                prop_assert_eq!(again, Ok(lists));
            }
            Err(error) => {
                let (at, span) = error.at.expect("an error of the text points at it");
                prop_assert_eq!(&at, &text);
                prop_assert!(span.start <= span.end && span.end <= text.chars().count());
                let lines: Vec<&str> = error.message.lines().collect();
                prop_assert_eq!(lines.len(), 4, "head, text, carets and one group");
                let carets = lines[2].trim_start_matches(' ');
                prop_assert!(!carets.is_empty() && carets.chars().all(|c| c == '^'));
                prop_assert!(lines[1].chars().count() <= 100);
                // At most two columns for each character, and one past the end.
                prop_assert!(lines[2].len() <= 2 * lines[1].chars().count() + 1);
                // Only a hint ends like this: the text that was found is in quotes.
                if let Some(head) = lines[0].strip_suffix("\"?") {
                    let hint = head.rsplit_once('"').map(|(_, hint)| hint).unwrap_or_default();
                    prop_assert!(parse_placement(hint, &groups, "c").is_ok(), "{}", hint);
                }
            }
        }
    }
}
