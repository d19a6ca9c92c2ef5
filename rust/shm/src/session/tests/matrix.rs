//! Every act, times every place of a death, times every state of the queue.

use std::path::PathBuf;
use std::time::Instant;

use super::case::{Start, dies_everywhere};
use super::messages::Kind;
use super::victim::{Act, dies};
use crate::ring::take::Keep;
use crate::session::leftovers::clear;
use crate::session::name::Token;
use crate::session::processes::leaving::age;
use crate::session::{Control, folders};

/// Runs the chosen acts with all their deaths; returns how many deaths there were.
fn deaths(chosen: impl Fn(Act) -> bool) -> u64 {
    let acts = Act::ALL.into_iter().filter(|&act| chosen(act));
    acts.flat_map(|act| Start::ALL.map(|start| dies_everywhere(act, None, start)))
        .sum()
}

#[test]
fn a_process_that_dies_putting_leaves_nothing_behind() {
    let deaths = deaths(|act| {
        matches!(
            act,
            Act::Put(_) | Act::PutAgain(_) | Act::PutMany(_) | Act::Trim
        )
    });
    assert!(deaths > 200, "only {deaths}");
}

#[test]
fn a_process_that_dies_taking_leaves_nothing_behind() {
    let deaths = deaths(|act| {
        matches!(
            act,
            Act::Take(..) | Act::Acknowledge(_) | Act::GiveBack(_) | Act::Wait
        )
    });
    assert!(deaths > 100, "only {deaths}");
}

#[test]
fn a_process_that_dies_joining_or_leaving_leaves_nothing_behind() {
    let deaths = deaths(|act| {
        matches!(
            act,
            Act::HangBell | Act::Close | Act::MakeQueue | Act::Join | Act::Leave
        )
    });
    assert!(deaths > 100, "only {deaths}");
}

#[test]
fn a_process_that_dies_making_a_session_leaves_a_leftover() {
    let base = tempfile::tempdir().expect("a folder");
    let folders = || -> Vec<_> {
        let entries = std::fs::read_dir(base.path()).expect("there");
        entries.map(|entry| entry.expect("listed").path()).collect()
    };
    let token = base.path().to_str().expect("text");
    let deaths = (0..1000).find(|&at| {
        let story = dies(Act::Create, token, "q", at);
        let made = folders();
        assert_eq!(made.len(), 1, "after {at}: {made:?}");
        // No process takes it for a session that is ready, and no process waits for it longer than
        // it wants to.
        let token: Token = made[0].to_str().expect("text").parse().expect("a token");
        let path = made[0].join(folders::CONTROL);
        let opened = Control::open(&path, token.session(), Instant::now());
        assert!(story.changes.is_none() || opened.is_ok(), "after {at}");
        drop(opened);
        let cleared = clear(base.path());
        if cleared.is_empty() {
            assert!(story.changes.is_none(), "a process took part");
            age(&made[0]);
            assert_eq!(clear(base.path()), made, "after {at}");
        } else {
            assert_eq!(cleared, made, "after {at}");
        }
        assert_eq!(folders(), [] as [PathBuf; 0], "after {at}");
        story.changes.is_some()
    });
    assert!(deaths.expect("it finishes some time") > 15);
}

#[test]
fn a_process_that_cleans_up_may_die_too() {
    // Each case leaves something else to clean up.
    let first = [
        (Act::Put(Kind::Block), 22),
        (Act::PutMany(Kind::Inline), 15),
        (Act::Take(Keep::Lease, 2, Kind::Block), 5),
        (Act::GiveBack(Kind::Block), 6),
        (Act::Trim, 2),
        (Act::HangBell, 2),
        (Act::MakeQueue, 6),
        (Act::Join, 18),
        (Act::Leave, 0),
        (Act::Leave, 9),
    ];
    let all = first.into_iter().flat_map(|(act, at)| {
        [Start::One, Start::Lapped].map(|start| dies_everywhere(act, Some(at), start))
    });
    let deaths: u64 = all.sum();
    assert!(deaths > 100, "only {deaths}");
}
