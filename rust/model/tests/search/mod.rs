//! The search of a model.
#![allow(
    clippy::print_stdout,
    reason = "a failure has to show the path to the broken property"
)]

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Searches all states, or until `enough` is found. Returns the properties that were decided, and
/// prints the path to each.
pub(crate) fn search<M>(model: M, enough: HasDiscoveries) -> Vec<&'static str>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Display + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().threads(2).finish_when(enough);
    let checker = checker.spawn_bfs().join();
    let mut found = Vec::new();
    for (property, path) in BTreeMap::from_iter(checker.discoveries()) {
        found.push(property);
        println!("{property}: decided after");
        for (state, action) in path.into_vec() {
            println!("  {action:?} {state}");
        }
    }
    println!("{} states", checker.unique_state_count());
    found
}
