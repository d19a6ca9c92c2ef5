//! Who does what, times where it dies, times what the queue is like.

use super::super::super::take::Keep;
use super::case::{Start, dies_everywhere, sweeper_dies_everywhere};
use super::messages::Kind;
use super::victim::Act;

/// All deaths of the acts that are chosen; how many there were.
fn deaths(chosen: impl Fn(Act) -> bool) -> u64 {
    let acts = Act::ALL.into_iter().filter(|&act| chosen(act));
    acts.flat_map(|act| Start::ALL.map(|start| dies_everywhere(act, start)))
        .sum()
}

#[test]
fn who_dies_putting_leaves_nothing_behind() {
    let deaths = deaths(|act| {
        matches!(
            act,
            Act::Put(_) | Act::PutAgain(_) | Act::PutMany(_) | Act::Trim
        )
    });
    assert!(deaths > 200, "only {deaths}");
}

#[test]
fn who_dies_taking_leaves_nothing_behind() {
    let deaths = deaths(|act| matches!(act, Act::Take(..) | Act::Acknowledge(_) | Act::Wait));
    assert!(deaths > 100, "only {deaths}");
}

#[test]
fn who_dies_coming_or_going_leaves_nothing_behind() {
    let deaths = deaths(|act| {
        matches!(
            act,
            Act::HangBell | Act::Close | Act::MakeQueue | Act::Join | Act::Leave
        )
    });
    assert!(deaths > 100, "only {deaths}");
}

#[test]
fn who_cleans_up_may_die_too() {
    // Each with something else that has to be cleaned up.
    let first = [
        (Act::Put(Kind::Block), 22),
        (Act::PutMany(Kind::Inline), 15),
        (Act::Take(Keep::Lease, 2, Kind::Block), 5),
        (Act::Trim, 2),
        (Act::HangBell, 2),
        (Act::MakeQueue, 6),
        (Act::Join, 18),
        (Act::Leave, 0),
        (Act::Leave, 9),
    ];
    let all = first.into_iter().flat_map(|(act, at)| {
        [Start::One, Start::Lapped].map(|start| sweeper_dies_everywhere(act, start, at))
    });
    let deaths: u64 = all.sum();
    assert!(deaths > 100, "only {deaths}");
}
