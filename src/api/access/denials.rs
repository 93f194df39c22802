//! The throttle of denials: how often callers without a credential may be told that they lack one.
//!
//! A valid credential is never throttled, so nobody can lock others out behind a shared address.
//! The throttle protects the audit trail, which has a line for each denial.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::Monotonic;

/// Denials of all addresses in a minute. They also limit the number of counted addresses.
const IN_ALL_MAX: u32 = 1000;
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Denials {
    of_address_max: u32,
    counted: Mutex<Counted>,
}

/// The denials since the beginning of the current minute.
#[derive(Default, Debug)]
struct Counted {
    since: Option<Monotonic>,
    in_all: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl Denials {
    /// Allows each address so many denials in a minute.
    pub fn new(of_address_max: u32) -> Self {
        Self { of_address_max, counted: Mutex::default() }
    }

    /// Counts a denial.
    ///
    /// # Errors
    /// The time until the next minute, when there were too many in this one. Such a denial is not
    /// counted.
    pub fn count(&self, address: IpAddr, now: Monotonic) -> Result<(), Duration> {
        let mut counted = self.counted.lock();
        let left = counted.since.map(|since| MINUTE.saturating_sub(now.since(since)));
        let left = left.filter(|left| !left.is_zero()).unwrap_or_else(|| {
            *counted = Counted { since: Some(now), ..Counted::default() };
            MINUTE
        });
        let of_address = counted.by_address.get(&address).copied().unwrap_or_default();
        if of_address >= self.of_address_max || counted.in_all >= IN_ALL_MAX {
            return Err(left);
        }
        counted.in_all += 1;
        counted.by_address.insert(address, of_address + 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(1000 + seconds))
    }

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn an_address_has_its_denials_each_minute_and_others_have_theirs() {
        let denials = Denials::new(20);
        for _denial in 0..20 {
            assert_eq!(denials.count(address(1), at(0)), Ok(()));
        }
        assert_eq!(denials.count(address(1), at(20)), Err(Duration::from_secs(40)));
        assert_eq!(denials.count(address(2), at(20)), Ok(()));
        assert_eq!(denials.count(address(1), at(59)), Err(Duration::from_secs(1)));
        assert_eq!(denials.count(address(1), at(60)), Ok(()));
    }

    #[test]
    fn all_addresses_together_have_a_limit_and_the_memory_has_it_too() {
        let denials = Denials::new(20);
        let passed = (0..5 * IN_ALL_MAX).filter(|n| denials.count(address(*n), at(0)).is_ok());
        assert_eq!(passed.count(), 1000);
        assert_eq!(denials.counted.lock().by_address.len(), 1000);
        assert_eq!(denials.count(address(1), at(60)), Ok(()));
        assert_eq!(denials.counted.lock().by_address.len(), 1);
    }
}
