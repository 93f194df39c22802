//! A node that reads an intake topic dies.

use super::{DEADLINE, Heir, Stage};
use crate::intake_topics::Intake;
use crate::support::eventually;
use crate::support::ledger::SERIAL_HEADER;

impl Stage {
    /// Each record of an intake topic takes effect once, in its order, wherever its node has died.
    pub(super) async fn intake(&self) {
        let intake = Intake::open(&self.cluster).await;
        let arguments = ["--intake-topic", &intake.topic];
        let heir = match self.heir {
            Heir::Restarted => None,
            Heir::Beside => Some(self.cluster.node_with(&arguments).await),
        };
        self.freeze(heir.as_ref()).await;
        let to = ("punctual-topic", self.topic.as_str());
        let (delay, name) = (("punctual-delay", "9s"), |name| ("punctual-name", name));
        for serial in 0..40 {
            let text = serial.to_string();
            let delay = if serial % 2 == 0 { delay } else { ("punctual-delay", "0s") };
            intake.append(0, Some(&text), None, &[to, delay, (SERIAL_HEADER, &text)]).await;
        }
        intake.append(0, Some("bad"), None, &[to]).await;
        // They are cancelled and replaced below, and must still wait then on a slow machine, too.
        let far = ("punctual-delay", "2h");
        intake.append(0, Some("0"), None, &[to, far, name("a")]).await;
        intake.append(0, Some("0"), None, &[to, far, name("b")]).await;
        intake.append(0, None, None, &[to, name("a"), ("punctual-op", "cancel")]).await;
        let last = [to, delay, name("b"), ("punctual-op", "replace"), (SERIAL_HEADER, "41")];
        intake.append(0, Some("41"), None, &last).await;
        let mut victim = self.cluster.spawn_to_die_with(&self.kill_at, &arguments);
        victim.wait_listening().await;
        let claimed = self.await_death(&mut victim).await;
        let _heir = match heir {
            Some(heir) => {
                heir.thaw();
                heir
            }
            None => self.cluster.node_with(&arguments).await,
        };
        intake.wait_read(45).await;
        self.consumer.wait_count(41, DEADLINE).await;
        self.cluster.wait_final(43, DEADLINE).await;
        self.assert_each_serial_once(41, &claimed);
        assert_eq!(self.number("select count(*) from execlog_cancelled").await, 2);
        let rejected = self.cluster.consumer(&intake.rejected_topic());
        rejected.wait_count(1, DEADLINE).await;
        eventually("no rejection waits", DEADLINE, async || {
            self.number("select count(*) from intake_rejected").await == 0
        })
        .await;
    }
}
