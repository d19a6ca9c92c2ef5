//! The protocol of payloads holds in every configuration, and every mutant is found.

mod search;

use search::search;
use shoal_model::{PayloadMutant, Payloads};
use stateright::HasDiscoveries;

const REUSED: &str = "the file is filled for the last time";
const CHANGED: &str = "no reader's bytes change";
const LOST: &str = "nothing that was announced is lost";
const LEAKED: &str = "everything is given back";

fn payloads(named: &[usize], payloads: u8, deaths: u8) -> Payloads {
    Payloads {
        named: named.to_vec(),
        payloads,
        deaths,
        mutant: None,
    }
}

macro_rules! holds {
    ($($name:ident: $model:expr;)*) => {$(
        #[test]
        fn $name() {
            // The writer fills the file again, so its tests of links and lock do succeed.
            assert_eq!(search($model, HasDiscoveries::AnyFailures), [REUSED]);
        }
    )*};
}

holds! {
    two_readers_and_three_deaths: payloads(&[0, 1], 3, 3);
    three_readers_and_two_deaths: payloads(&[0, 1, 2], 2, 2);
    a_forked_child_reads_in_the_name_of_its_parent: payloads(&[0, 0], 3, 3);
}

/// Searches with one error in the protocol; the search must find the property that breaks.
macro_rules! found {
    ($($name:ident: $mutant:ident in $model:expr, $expected:expr;)*) => {$(
        #[test]
        fn $name() {
            let model = Payloads { mutant: Some(PayloadMutant::$mutant), ..$model };
            let found = search(model, HasDiscoveries::AnyOf([$expected].into()));
            assert!(found.contains(&$expected), "{found:?}");
        }
    )*};
}

found! {
    mutant_that_looks_at_the_link_count_alone: OnlyLinkCount in payloads(&[0], 2, 0), CHANGED;
    mutant_that_asks_for_the_lock_alone: OnlyLock in payloads(&[0], 2, 0), CHANGED;
    mutant_that_asks_for_the_lock_first: LockTestFirst in payloads(&[0], 2, 0), CHANGED;
    mutant_that_announces_before_it_links: AnnouncedBeforeLinked in payloads(&[0], 1, 0), LOST;
    mutant_that_unlinks_before_it_locks: UnlinkBeforeLock in payloads(&[0], 2, 0), CHANGED;
    mutant_that_does_not_check_its_unlink: UnlinkNotChecked in payloads(&[0, 0], 2, 1), CHANGED;
    mutant_that_leaves_its_link: LinkLeft in payloads(&[0], 1, 0), LEAKED;
    mutant_whose_lock_ends_with_the_descriptor: LockEndsAtClose in payloads(&[0], 2, 0), CHANGED;
    mutant_whose_lock_outlives_the_mapping: LockOutlivesView in payloads(&[0], 1, 0), LEAKED;
    mutant_that_leaves_the_links_of_the_dead: LinksNotSwept in payloads(&[0], 1, 1), LEAKED;
    mutant_that_leaves_the_base_of_the_dead: BaseNotSwept in payloads(&[0], 1, 1), LEAKED;
    mutant_that_sweeps_what_was_announced: AnnouncedSwept in payloads(&[0], 1, 1), LOST;
}
