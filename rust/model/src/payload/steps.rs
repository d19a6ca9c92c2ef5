//! The steps of the writer and of the readers.

use super::{PayloadMutant, PayloadState, Payloads, Reader, Step, TORN, Writer, bit};

impl Payloads {
    pub(super) fn first_test(&self) -> Writer {
        match self.mutant {
            Some(PayloadMutant::OnlyLock | PayloadMutant::LockTestFirst) => Writer::TestLock,
            _ => Writer::TestLinks,
        }
    }

    pub(super) fn write(&self, next: &mut PayloadState) {
        let payload = next.payload;
        next.writer = match next.writer {
            Writer::TestLinks if next.links.iter().any(|&links| links != 0) => self.first_test(),
            Writer::TestLinks
                if self.is(PayloadMutant::OnlyLinkCount)
                    || self.is(PayloadMutant::LockTestFirst) =>
            {
                Writer::Fill
            }
            Writer::TestLinks => Writer::TestLock,
            Writer::TestLock if next.readers.iter().any(|reader| reader.locks != 0) => {
                self.first_test()
            }
            Writer::TestLock => {
                next.exclusive = true;
                Writer::Unlock
            }
            Writer::Unlock => {
                next.exclusive = false;
                if self.is(PayloadMutant::LockTestFirst) {
                    Writer::TestLinks
                } else {
                    Writer::Fill
                }
            }
            Writer::Fill => {
                next.content = TORN;
                Writer::Filled
            }
            Writer::Filled => {
                next.content = payload;
                self.first_send()
            }
            Writer::Link(reader) => {
                next.links[reader] |= bit(payload);
                self.after(next, reader, Writer::Link, self.announces_first())
            }
            Writer::Announce(reader) => {
                next.announced[reader] |= bit(payload);
                if !next.readers[reader].dead {
                    next.readers[reader].pending |= bit(payload);
                }
                self.after(next, reader, Writer::Announce, !self.announces_first())
            }
            writer @ (Writer::Done | Writer::Dead) => writer,
        };
    }

    /// Removes the link of the next reader that the payload was not announced to.
    pub(super) fn withdraw(&self, next: &mut PayloadState) {
        let Writer::Announce(first) = next.writer else {
            return;
        };
        if self.announces_first() {
            return;
        }
        next.links[first] &= !bit(next.payload);
        next.writer = self.after(next, first, Writer::Announce, true);
    }

    fn announces_first(&self) -> bool {
        self.is(PayloadMutant::AnnouncedBeforeLinked)
    }

    fn first_send(&self) -> Writer {
        if self.announces_first() {
            Writer::Announce(0)
        } else {
            Writer::Link(0)
        }
    }

    /// The same step for the next reader, or the step that follows for the last one.
    fn after(
        &self,
        next: &mut PayloadState,
        reader: Reader,
        same: fn(Reader) -> Writer,
        is_last: bool,
    ) -> Writer {
        if reader + 1 < self.named.len() {
            return same(reader + 1);
        }
        if !is_last {
            return if self.announces_first() {
                Writer::Link(0)
            } else {
                Writer::Announce(0)
            };
        }
        if next.payload == self.payloads {
            return Writer::Done;
        }
        next.payload += 1;
        self.first_test()
    }

    pub(super) fn read(&self, next: &mut PayloadState, reader: Reader) {
        let named_dead = self.is_named_dead(next, reader);
        let exclusive = next.exclusive;
        let links = &mut next.links[reader];
        let r = &mut next.readers[reader];
        let unlinks_first = self.is(PayloadMutant::UnlinkBeforeLock);
        match r.step {
            Step::Open => {
                let payload = u8::try_from(r.pending.trailing_zeros()).unwrap_or(0);
                r.pending &= !bit(payload);
                if *links & bit(payload) == 0 {
                    next.lost |= !named_dead;
                    return;
                }
                r.payload = payload;
                if unlinks_first {
                    *links &= !bit(payload);
                }
                r.step = Step::Lock;
            }
            Step::Lock if exclusive => {
                next.lost |= !named_dead;
                r.step = Step::Open;
            }
            Step::Lock => {
                r.locks |= bit(r.payload);
                r.step = Step::Map;
            }
            Step::Map => r.step = Step::Close,
            Step::Close => {
                if self.is(PayloadMutant::LockEndsAtClose) {
                    r.locks &= !bit(r.payload);
                }
                r.step = Step::Unlink;
            }
            Step::Unlink => {
                let there = *links & bit(r.payload) != 0 || unlinks_first;
                if !self.is(PayloadMutant::LinkLeft) {
                    *links &= !bit(r.payload);
                }
                if there || self.is(PayloadMutant::UnlinkNotChecked) {
                    r.views |= bit(r.payload);
                } else {
                    r.locks &= !bit(r.payload);
                    next.lost |= !named_dead;
                }
                r.step = Step::Open;
            }
        }
    }

    pub(super) fn drop_view(&self, next: &mut PayloadState, reader: Reader, payload: u8) {
        let r = &mut next.readers[reader];
        r.views &= !bit(payload);
        if !self.is(PayloadMutant::LockOutlivesView) {
            r.locks &= !bit(payload);
        }
    }
}
