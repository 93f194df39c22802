//! How many look-ups of topics in Kafka each principal may have in progress.
//!
//! One thread asks Kafka, one topic after the other. A caller that names many topics at a time
//! would otherwise fill its queue, and keep out everybody's new topics.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::domain::PrincipalName;

/// Look-ups of one principal in progress: a quarter of the queue of `kafka::TopicCache`.
const OF_PRINCIPAL_MAX: usize = 128;

/// The look-ups in progress. A principal without one has no entry.
#[derive(Default, Debug)]
pub struct LookUpLimit(Mutex<HashMap<PrincipalName, usize>>);

/// A look-up in progress.
#[derive(Debug)]
pub struct LookUpInProgress<'a> {
    limit: &'a LookUpLimit,
    principal: &'a PrincipalName,
}

impl LookUpLimit {
    /// Counts a look-up until the returned value is dropped. `None` when the principal has too
    /// many.
    pub fn take<'a>(&'a self, principal: &'a PrincipalName) -> Option<LookUpInProgress<'a>> {
        let mut counts = self.0.lock();
        match counts.get_mut(principal) {
            Some(count) if *count >= OF_PRINCIPAL_MAX => return None,
            Some(count) => *count += 1,
            None => {
                counts.insert(principal.clone(), 1);
            }
        }
        Some(LookUpInProgress { limit: self, principal })
    }

    /// Makes a look-up for a principal. `None` without a look-up when the principal has too many.
    pub async fn within<T>(
        &self,
        principal: &PrincipalName,
        look_up: impl Future<Output = T>,
    ) -> Option<T> {
        let _counted = self.take(principal)?;
        Some(look_up.await)
    }
}

impl Drop for LookUpInProgress<'_> {
    fn drop(&mut self) {
        let mut counts = self.limit.0.lock();
        if let Some(count) = counts.get_mut(self.principal) {
            *count -= 1;
            if *count == 0 {
                counts.remove(self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_principal_has_its_limit_and_others_have_theirs() {
        let limit = LookUpLimit::default();
        let [ann, bob] = ["ann", "bob"].map(|name| PrincipalName::new(name).unwrap());
        let mut of_ann: Vec<_> = (0..OF_PRINCIPAL_MAX).map(|_| limit.take(&ann)).collect();
        assert!(of_ann.iter().all(Option::is_some) && limit.take(&ann).is_none());
        assert!(limit.take(&bob).is_some());
        drop(of_ann.pop());
        assert!(limit.take(&ann).is_some());
        drop(of_ann);
        assert!(limit.0.lock().is_empty());
    }

    #[tokio::test]
    async fn a_look_up_counts_while_it_lasts_and_is_not_made_beyond_the_limit() {
        let limit = LookUpLimit::default();
        let ann = PrincipalName::new("ann").unwrap();
        let counted = async || limit.0.lock().get(&ann).copied();
        assert_eq!(limit.within(&ann, counted()).await, Some(Some(1)));
        let others: Vec<_> = (0..OF_PRINCIPAL_MAX).map(|_| limit.take(&ann)).collect();
        let is_made = Cell::new(false);
        assert_eq!(limit.within(&ann, async { is_made.set(true) }).await, None);
        assert!(!is_made.get());
        drop(others);
        assert!(limit.0.lock().is_empty());
    }
}
