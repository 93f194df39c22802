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
pub struct LookUpShares(Mutex<HashMap<PrincipalName, usize>>);

/// A look-up in progress.
#[derive(Debug)]
pub struct LookUpShare<'a> {
    shares: &'a LookUpShares,
    principal: &'a PrincipalName,
}

impl LookUpShares {
    /// Counts a look-up until the returned value is dropped. `None` when the principal has too
    /// many.
    pub fn take<'a>(&'a self, principal: &'a PrincipalName) -> Option<LookUpShare<'a>> {
        let mut shares = self.0.lock();
        match shares.get_mut(principal) {
            Some(count) if *count >= OF_PRINCIPAL_MAX => return None,
            Some(count) => *count += 1,
            None => {
                shares.insert(principal.clone(), 1);
            }
        }
        Some(LookUpShare { shares: self, principal })
    }
}

impl Drop for LookUpShare<'_> {
    fn drop(&mut self) {
        let mut shares = self.shares.0.lock();
        if let Some(count) = shares.get_mut(self.principal) {
            *count -= 1;
            if *count == 0 {
                shares.remove(self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_has_its_share_and_others_have_theirs() {
        let shares = LookUpShares::default();
        let [ann, bob] = ["ann", "bob"].map(|name| PrincipalName::new(name).unwrap());
        let mut of_ann: Vec<_> = (0..OF_PRINCIPAL_MAX).map(|_| shares.take(&ann)).collect();
        assert!(of_ann.iter().all(Option::is_some) && shares.take(&ann).is_none());
        assert!(shares.take(&bob).is_some());
        drop(of_ann.pop());
        assert!(shares.take(&ann).is_some());
        drop(of_ann);
        assert!(shares.0.lock().is_empty());
    }
}
