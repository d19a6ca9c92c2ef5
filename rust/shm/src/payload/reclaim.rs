//! Takes away extents that hold no message: those of dead processes, and idle ones of live
//! processes.

use super::files::ExtentFiles;
use super::ownership::{Ownership, OwnershipWord};
use crate::ring::descriptor::Payload;
use crate::ring::word::{Owner, State};
use crate::segment::Control;
use crate::segment::layout::Extent;
use crate::sync::Ordering;

/// The extents that were taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reclaimed {
    /// Number of extents.
    pub(crate) extents: u64,
    /// Number of their bytes.
    pub(crate) bytes: u64,
}

/// Takes away the extents of dead processes that no descriptor names, and leaves their others
/// without a holder.
///
/// Afterwards no extent is held by a dead participant, so its index can be given out again. The set
/// of dead processes does not change meanwhile. Extents that already have no holder are taken too.
pub(crate) fn retire_unreferenced(
    control: &Control,
    files: &ExtentFiles,
    me: Owner,
    is_dead: &dyn Fn(Owner) -> bool,
) -> Reclaimed {
    let is_dead = |owner: Owner| owner == Owner::NOBODY || is_dead(owner);
    let found = candidates(control, |_, owner| is_dead(owner));
    retire(control, files, me, &found, |entry, seen| {
        entry.orphan(seen);
    })
}

/// Takes away extents that other processes keep and do not use, so that their memory is available.
pub(super) fn retire_idle(control: &Control, files: &ExtentFiles, me: Owner) -> Reclaimed {
    let found = candidates(control, |seen, owner| seen.is_quiet() && owner != me);
    retire(control, files, me, &found, |_, _| ())
}

/// An extent that may be taken away, with its ownership from before the look at the descriptors.
type Candidate<'a> = (usize, &'a Extent, Ownership);

fn candidates(control: &Control, wanted: impl Fn(Ownership, Owner) -> bool) -> Vec<Candidate<'_>> {
    let seen = control.extents().iter().map(|entry| (entry, entry.seen()));
    (0..)
        .zip(seen)
        .filter(|(_, (_, seen))| seen.holder().is_some_and(|owner| wanted(*seen, owner)))
        .map(|(index, (entry, seen))| (index, entry, seen))
        .collect()
}

/// Takes away those that no descriptor names; calls `spare` for the others.
fn retire(
    control: &Control,
    files: &ExtentFiles,
    me: Owner,
    found: &[Candidate<'_>],
    spare: impl Fn(&Extent, Ownership),
) -> Reclaimed {
    let mut reclaimed = Reclaimed::default();
    if found.is_empty() {
        return reclaimed;
    }
    // Read after the tenures: an extent that changed since then cannot be seized.
    let named = named(control);
    for &(index, entry, seen) in found {
        let length = entry.length.load(Ordering::Relaxed);
        if named[index] {
            spare(entry, seen);
        } else if entry.seize(seen, me) {
            files.remove(entry);
            reclaimed.extents += 1;
            reclaimed.bytes += length;
        }
    }
    reclaimed
}

/// For each extent: whether a message lies in it, or may soon.
fn named(control: &Control) -> Vec<bool> {
    let extents = control.extents();
    let mut named = vec![false; extents.len()];
    for (index, descriptor) in (0..).zip(control.descriptors()) {
        let word = descriptor.word();
        let Ok(Payload::Block(block)) = descriptor.payload(index) else {
            continue;
        };
        let extent = block.extent as usize;
        let Some(entry) = extents.get(extent) else {
            continue;
        };
        named[extent] |= match word.state() {
            Some(State::Free) => false,
            // While a descriptor is being filled, it may still name an earlier block. Its next
            // block can only lie in an extent of its producer.
            Some(State::Writing) => entry.seen().holder() == Some(word.owner()),
            _ => true,
        };
    }
    named
}
