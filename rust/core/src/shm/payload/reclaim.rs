//! Taking away extents that no message is in: those of the dead, and idle ones of the living.

use super::super::descriptor::Payload;
use super::super::session::Control;
use super::super::session::layout::Extent;
use super::super::sync::Ordering;
use super::super::word::{Owner, State};
use super::files::ExtentFiles;
use super::tenure::{Held, Tenure};

/// What was taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reclaimed {
    /// How many extents.
    pub(crate) extents: u64,
    /// How many bytes they had.
    pub(crate) bytes: u64,
}

/// Takes away what the dead had, where no descriptor names it, and leaves the rest to nobody.
///
/// Afterwards no extent is held by a dead participant, so that its index can be given out again.
/// Who is dead does not change meanwhile; nobody's are taken too.
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

/// Takes away what others keep and do not use, so that their memory can be had.
pub(super) fn retire_idle(control: &Control, files: &ExtentFiles, me: Owner) -> Reclaimed {
    let found = candidates(control, |seen, owner| seen.is_quiet() && owner != me);
    retire(control, files, me, &found, |_, _| ())
}

/// An extent that may go, as it was before the look at the descriptors.
type Candidate<'a> = (usize, &'a Extent, Tenure);

fn candidates(control: &Control, wanted: impl Fn(Tenure, Owner) -> bool) -> Vec<Candidate<'_>> {
    let seen = control.extents().iter().map(|entry| (entry, entry.seen()));
    (0..)
        .zip(seen)
        .filter(|(_, (_, seen))| seen.holder().is_some_and(|owner| wanted(*seen, owner)))
        .map(|(index, (entry, seen))| (index, entry, seen))
        .collect()
}

/// Takes away those that no descriptor names; `spare` gets the others.
fn retire(
    control: &Control,
    files: &ExtentFiles,
    me: Owner,
    found: &[Candidate<'_>],
    spare: impl Fn(&Extent, Tenure),
) -> Reclaimed {
    let mut reclaimed = Reclaimed::default();
    if found.is_empty() {
        return reclaimed;
    }
    // After the tenures: what changed since does not let itself be seized.
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

/// Which extents a message lies in, or may come to lie in.
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
            // What is being filled may say still what it said before. It comes to lie in extents
            // of its producer only.
            Some(State::Writing) => entry.seen().holder() == Some(word.owner()),
            _ => true,
        };
    }
    named
}
