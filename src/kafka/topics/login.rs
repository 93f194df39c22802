//! Tells why the prober cannot log in. Nobody reads the errors of its own client, an admin client,
//! and a login by tokens fails without a word to anybody else.

use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, ProducerContext};

use crate::clock;
use crate::kafka::context::{TokenTrouble, token_trouble_of_error, token_trouble_of_log};
use crate::kafka::{KafkaContact, KafkaSettings};

/// How long the first look waits for an error.
const PATIENCE: Duration = Duration::from_secs(1);
const MECHANISM: &str = "OAUTHBEARER";

/// A client that does nothing but log in.
pub(super) struct LoginCheck {
    client: BaseProducer<LoginContext>,
}

struct LoginContext {
    contact: KafkaContact,
}

impl LoginCheck {
    /// Starts a client, and waits a moment for its first error. `None` when logins take no tokens,
    /// or when there can be no client.
    pub(super) fn start(settings: &KafkaSettings, contact: &KafkaContact) -> Option<Self> {
        if !settings.property("sasl.mechanisms")?.eq_ignore_ascii_case(MECHANISM) {
            return None;
        }
        let mut config = settings.admin_config(PATIENCE);
        config.set_log_level(RDKafkaLogLevel::Error);
        let context = LoginContext { contact: contact.clone() };
        let client: BaseProducer<LoginContext> = config.create_with_context(context).ok()?;
        let began_at = clock::monotonic();
        while !contact.lacks_a_token() && clock::monotonic().since(began_at) < PATIENCE {
            client.poll(PATIENCE / 10);
        }
        Some(Self { client })
    }

    /// Takes in what the client has noted.
    pub(super) fn take_in(&self) {
        self.client.poll(Duration::ZERO);
    }
}

impl LoginContext {
    fn note(&self, trouble: Option<TokenTrouble<'_>>) {
        if let Some(trouble) = trouble {
            self.contact.note_token_failure(&trouble.text(), clock::monotonic());
        }
    }
}

impl ClientContext for LoginContext {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.note(token_trouble_of_log(facility, line));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.note(token_trouble_of_error(&error, reason));
    }
}

impl ProducerContext for LoginContext {
    type DeliveryOpaque = ();

    fn delivery(&self, _delivery: &DeliveryResult<'_>, (): ()) {}
}
