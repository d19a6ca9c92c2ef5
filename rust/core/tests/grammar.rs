//! The parser of placement strings against any text: a bounded version of `rust/fuzz`.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use shoal_core::placement::{NodeGroup, NodeResources, RankLists, parse_placement};

fn groups(sizes: &[u32], whole: bool) -> Vec<Arc<NodeGroup>> {
    let nodes = (0..)
        .zip(sizes)
        .map(|(rank, &size)| NodeResources::new(rank, size, size, "NV_GPU"))
        .collect();
    let kind = (!whole).then_some("Accelerator");
    vec![Arc::new(NodeGroup::new("cluster", kind, nodes))]
}

fn clusters() -> impl Strategy<Value = Vec<Arc<NodeGroup>>> {
    let sizes = prop::collection::vec(0_u32..9, 1..6);
    (sizes, any::<bool>()).prop_map(|(sizes, whole)| groups(&sizes, whole))
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
