//! Fuzz target: any text is a valid placement, or gives an error that points into it (`cargo
//! +nightly fuzz run placement`).
//!
//! The first byte chooses the cluster, the rest is the text.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use shoal_core::placement::{NodeGroup, NodeResources, parse_placement};

fn groups(choice: u8) -> Vec<Arc<NodeGroup>> {
    let node = |rank| NodeResources::new(rank, u32::from(choice >> 4), 8, "NV_GPU");
    let kind = (choice & 1 == 0).then_some("Accelerator");
    let size = u32::from(choice >> 1 & 7);
    let first = NodeGroup::new("a", kind, (0..size).map(node).collect());
    let second = NodeGroup::new("b", kind, (size..size + 2).map(node).collect());
    vec![Arc::new(first), Arc::new(second)]
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(rest) else {
        return;
    };
    let groups = groups(choice);
    match parse_placement(text, &groups, "c") {
        Ok(ranks) => {
            assert!(!ranks.is_empty());
            for list in ranks.iter() {
                assert!(!list.is_empty() && list.is_sorted_by(|a, b| a < b));
            }
        }
        Err(error) => {
            let (at, span) = error.at.expect("an error of the text points at it");
            assert_eq!(at, text);
            assert!(span.start <= span.end && span.end <= text.chars().count());
            // Only a hint ends like this: a found text in quotes is not followed by a question
            // mark.
            let head = error.message.lines().next().unwrap_or_default();
            if let Some(head) = head.strip_suffix("\"?") {
                let hint = head
                    .rsplit_once('"')
                    .map(|(_, hint)| hint)
                    .unwrap_or_default();
                assert!(parse_placement(hint, &groups, "c").is_ok(), "{hint}");
            }
        }
    }
});
