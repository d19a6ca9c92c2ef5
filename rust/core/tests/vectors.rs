//! The vectors of `tests/vectors`, which the Python tests read too.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};
use shoal_core::placement::{
    NodeGroup, NodeResources, Placement, Placements, parse_placement, place_flexible, place_nodes,
    place_packed,
};
use shoal_core::text::Span;
use shoal_core::{AddressError, PlacementError, WorkerAddress};

fn read<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/vectors")
        .join(name);
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap()
}

/// The form of an error in a vector.
fn error(kind: &dyn std::fmt::Debug, message: String, span: Option<Span>) -> Value {
    let mut error = json!({"kind": format!("{kind:?}"), "message": message});
    if let Some(span) = span {
        error["span"] = json!([span.start, span.end]);
    }
    error
}

fn address_error(e: &AddressError) -> Value {
    error(&e.kind, e.to_string(), Some(e.span))
}

fn placement_error(e: &PlacementError) -> Value {
    error(&e.kind, e.to_string(), e.at.as_ref().map(|at| at.1))
}

#[derive(Deserialize)]
struct Addresses {
    parse: Vec<Parse>,
    make: Vec<Make>,
    sorted: Vec<String>,
}

#[derive(Deserialize)]
struct Parse {
    input: String,
    expect: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Make {
    root: String,
    ranks: Vec<String>,
    expect: Option<String>,
    error: Option<Value>,
}

#[test]
fn addresses_parse_as_the_vectors_say() {
    for case in read::<Addresses>("address.json").parse {
        match case.input.parse::<WorkerAddress>() {
            Ok(address) => {
                let found = json!({
                    "root": address.root_group_name(),
                    "path": address.rank_path(),
                    "rank": address.rank(),
                    "parent_rank": address.parent_rank(),
                    "parent": address.parent().map(|parent| parent.name().to_owned()),
                    "first_child": address.child("0").unwrap().name(),
                });
                assert_eq!(Some(found), case.expect, "{:?}", case.input);
                assert_eq!(address.to_string(), case.input);
            }
            Err(e) => {
                assert_eq!(Some(address_error(&e)), case.error, "{:?}", case.input);
                assert_eq!(e.text, case.input);
            }
        }
    }
}

#[test]
fn addresses_are_made_as_the_vectors_say() {
    for case in read::<Addresses>("address.json").make {
        let made = WorkerAddress::new(&case.root, &case.ranks);
        if let Ok(path) = case.ranks.iter().map(|rank| rank.parse()).collect() {
            assert_eq!(WorkerAddress::from_ranks(&case.root, path), made);
        }
        match made {
            Ok(address) => assert_eq!(Some(address.name()), case.expect.as_deref()),
            Err(e) => {
                let mut found = address_error(&e);
                found["text"] = json!(e.text);
                assert_eq!(Some(found), case.error, "{}", case.root);
            }
        }
    }
}

#[test]
fn addresses_sort_as_the_vectors_say() {
    let names = read::<Addresses>("address.json").sorted;
    let mut addresses: Vec<WorkerAddress> = names
        .iter()
        .rev()
        .map(|name| name.parse().unwrap())
        .collect();
    addresses.sort();
    let sorted: Vec<_> = addresses.iter().map(WorkerAddress::name).collect();
    assert_eq!(sorted, names);
}

type Groups = BTreeMap<String, Vec<(String, Option<String>, Vec<(u32, u32, u32, String)>)>>;

fn groups(all: &Groups, name: &str) -> Vec<Arc<NodeGroup>> {
    all[name]
        .iter()
        .map(|(label, kind, nodes)| {
            let nodes = nodes
                .iter()
                .map(|(rank, hardware, accelerators, kind)| {
                    NodeResources::new(*rank, *hardware, *accelerators, kind)
                })
                .collect();
            Arc::new(NodeGroup::new(label, kind.as_deref(), nodes))
        })
        .collect()
}

#[derive(Deserialize)]
struct Text {
    groups: String,
    input: String,
    expect: Option<Vec<(Vec<u32>, usize)>>,
    error: Option<Value>,
}

#[test]
fn placement_strings_parse_as_the_vectors_say() {
    let all = read("groups.json");
    for case in read::<Vec<Text>>("grammar.json") {
        let groups = groups(&all, &case.groups);
        match parse_placement(&case.input, &groups, "actor,rollout") {
            Ok(found) => {
                let runs = case.expect.unwrap_or_default();
                let expected: Vec<Vec<u32>> = runs
                    .into_iter()
                    .flat_map(|(ranks, n)| vec![ranks; n])
                    .collect();
                let found: Vec<Vec<u32>> = found.iter().map(<[u32]>::to_vec).collect();
                assert_eq!(found, expected, "{:?}", case.input);
            }
            Err(e) => {
                assert_eq!(Some(placement_error(&e)), case.error, "{:?}", case.input);
                assert!(e.at.is_none_or(|(text, _)| text == case.input));
            }
        }
    }
}

#[derive(Deserialize)]
struct Solve {
    op: String,
    groups: String,
    args: Value,
    expect: Option<Value>,
    error: Option<Value>,
}

fn solve(groups: &[Arc<NodeGroup>], op: &str, args: Value) -> Result<Placements, PlacementError> {
    match op {
        "packed" => {
            let (start, end, size, stride, isolate): (_, _, NonZeroU32, NonZeroU32, _) =
                from_value(args).unwrap();
            place_packed(groups, start, end, size, stride, isolate)
        }
        "flexible" => {
            let (ranks, isolate): (Vec<Vec<u32>>, bool) = from_value(args).unwrap();
            place_flexible(groups, &ranks.into_iter().collect(), isolate)
        }
        _ => {
            let (ranks, isolate): (Vec<u32>, bool) = from_value(args).unwrap();
            place_nodes(groups, &ranks, isolate)
        }
    }
}

fn fields(p: &Placement) -> Value {
    json!({
        "rank": p.rank,
        "cluster_node_rank": p.cluster_node_rank,
        "placement_node_rank": p.placement_node_rank,
        "local_accelerator_rank": p.local_accelerator_rank,
        "accelerator_type": p.accelerator_type,
        "local_rank": p.local_rank,
        "local_world_size": p.local_world_size,
        "visible_accelerators": p.visible_accelerators,
        "isolate_accelerator": p.isolate_accelerator,
        "local_hardware_ranks": p.local_hardware_ranks,
        "node_group_label": p.node_group_label,
    })
}

#[test]
fn strategies_place_as_the_vectors_say() {
    let all = read("groups.json");
    for case in read::<Vec<Solve>>("solve.json") {
        let what = format!("{} {} {}", case.op, case.groups, case.args);
        match solve(&groups(&all, &case.groups), &case.op, case.args) {
            Ok(placed) => {
                let found = Value::Array(placed.iter().map(|p| fields(&p)).collect());
                assert_eq!(Some(found), case.expect, "{what}");
            }
            Err(e) => assert_eq!(Some(placement_error(&e)), case.error, "{what}"),
        }
    }
}
