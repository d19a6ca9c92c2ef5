//! Gives a leased message back to its queue.

use super::{Error, Session, queue_table};
use crate::ring::error::Corrupt;
use crate::ring::queue::wake_all;
use crate::ring::republish::GivenBack;
use crate::ring::take::Loan;
use crate::sync::Ordering;

impl Session {
    /// Puts a message that this process has leased at the end of its queue, for any consumer.
    ///
    /// # Errors
    ///
    /// If this process was taken for dead, or there is damage.
    pub(super) fn redeliver(&self, loan: Loan) -> Result<(), Error> {
        let control = self.control();
        let table = control.table();
        let ring = loan.ring(&table)?;
        if u64::from(ring) >= queue_table::count(control) {
            let index = loan.index();
            return Err(Corrupt::NoSuchRing { index, ring }.into());
        }
        let ring = queue_table::ring(control, ring)?;
        let given_back =
            self.with_record(|record| loan.give_back(record, &table, &ring, self.me()));
        if given_back == Ok(GivenBack::Postponed) {
            // ORDER: Release, pairs with the recovery: the word of the message. If this process
            // dies before the count, the recovery has a dead process to clean up after anyway.
            let counter = &control.superblock().counters.0.given_back;
            counter.fetch_add(1, Ordering::Release);
        }
        wake_all(&ring, &self.signals());
        given_back?;
        Ok(())
    }
}
