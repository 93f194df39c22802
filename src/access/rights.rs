//! The rights of a principal: rules for actions on topics, and the decision by these rules.

use super::action::Action;
use super::pattern::Pattern;
use crate::domain::TopicName;

/// A rule of the auth file: these actions on these topics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    pub actions: Vec<Action>,
    pub topics: Vec<Pattern>,
}

/// The parts of [`Rights`]: rules that allow, rules that deny, and the right to operate.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Grants {
    pub allow: Vec<Rule>,
    pub deny: Vec<Rule>,
    pub operates: bool,
}

impl Grants {
    /// Adds those of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.allow.extend(other.allow.iter().cloned());
        self.deny.extend(other.deny.iter().cloned());
        self.operates |= other.operates;
    }

    pub fn rights(&self) -> Rights {
        Rights::new(&self.allow, &self.deny, self.operates)
    }

    /// Returns true when they give no right at all.
    pub fn is_nothing(&self) -> bool {
        let rights = self.rights();
        !rights.operates() && Action::IN_RULES.iter().all(|action| !rights.allows_anywhere(*action))
    }
}

/// The rights of a principal. The order of rules does not matter, and a narrow pattern is no
/// stronger than a wide one: an action on a topic is allowed when a rule allows it and no rule
/// denies it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    is_everything: bool,
    operates: bool,
    allowed: ByAction,
    denied: ByAction,
}

/// The patterns of each action, in the order of [`Action::IN_RULES`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct ByAction([Vec<Pattern>; Action::IN_RULES.len()]);

impl ByAction {
    fn new(rules: &[Rule]) -> Self {
        Self(Action::IN_RULES.map(|action| {
            let rules = rules.iter().filter(|rule| rule.actions.contains(&action));
            let mut patterns: Vec<Pattern> =
                rules.flat_map(|rule| rule.topics.iter().cloned()).collect();
            patterns.sort();
            patterns.dedup();
            patterns
        }))
    }

    fn of(&self, action: Action) -> &[Pattern] {
        let mut pairs = Action::IN_RULES.iter().zip(&self.0);
        pairs.find(|(other, _)| **other == action).map_or(&[], |(_, patterns)| patterns)
    }
}

impl Rights {
    pub fn new(allow: &[Rule], deny: &[Rule], operates: bool) -> Self {
        Self {
            is_everything: false,
            operates,
            allowed: ByAction::new(allow),
            denied: ByAction::new(deny),
        }
    }

    /// Returns the rights to every action on every topic, for a node without an auth file.
    pub fn everything() -> Self {
        Self { is_everything: true, operates: true, ..Self::default() }
    }

    /// Returns true when every action is allowed on every topic, without exception.
    pub fn is_everything(&self) -> bool {
        self.is_everything
    }

    /// Returns true when `action` is allowed on `topic`. Who operates the cluster operates each
    /// topic that no rule denies.
    pub fn allows(&self, action: Action, topic: &TopicName) -> bool {
        let is_operator = self.operates && action == Action::Operate;
        self.is_everything
            || (is_operator || self.allowed.of(action).iter().any(|pattern| pattern.allows(topic)))
                && !self.denied.of(action).iter().any(|pattern| pattern.denies(topic))
    }

    /// Returns true when `action` is allowed on `*` and denied nowhere. Topics whose names begin
    /// with `_` are still not allowed unless they are written out: filter single rows by
    /// [`Self::allows`].
    pub fn allows_everywhere(&self, action: Action) -> bool {
        if action == Action::Operate {
            return self.operates;
        }
        self.is_everything
            || self.allowed.of(action).contains(&Pattern::All) && self.denied.of(action).is_empty()
    }

    /// Returns true when a topic may exist on which `action` is allowed. When it returns false, no
    /// look-up can change the answer.
    pub fn allows_anywhere(&self, action: Action) -> bool {
        let is_operator = self.operates && action == Action::Operate;
        self.is_everything
            || (is_operator || !self.allowed.of(action).is_empty())
                && !self.denied.of(action).contains(&Pattern::All)
    }

    /// Returns true when the principal may see the state of the cluster.
    pub fn operates(&self) -> bool {
        self.operates
    }

    /// Returns the allowed and the denied patterns of `action`, for people. A principal with all
    /// rights has `*`.
    pub fn patterns(&self, action: Action) -> (&[Pattern], &[Pattern]) {
        let allowed = if self.is_everything { &[Pattern::All] } else { self.allowed.of(action) };
        (allowed, self.denied.of(action))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    fn rule(actions: &[Action], topics: &[&str]) -> Rule {
        let topics = topics.iter().map(|text| Pattern::new(text).unwrap()).collect();
        Rule { actions: actions.to_vec(), topics }
    }

    #[test]
    fn everything_is_denied_at_first() {
        let rights = Rights::default();
        for action in Action::ON_TOPICS {
            assert!(!rights.allows(action, &topic("orders")), "{action}");
            assert!(!rights.allows_anywhere(action) && !rights.allows_everywhere(action));
        }
        assert!(!rights.operates() && !rights.allows(Action::Operate, &topic("orders")));
    }

    #[test]
    fn a_right_is_for_its_action_and_its_topics_alone() {
        let rights = Rights::new(&[rule(&[Action::Read], &["orders.*"])], &[], false);
        assert!(rights.allows(Action::Read, &topic("orders.a")));
        assert!(!rights.allows(Action::Read, &topic("orders")));
        assert!(!rights.allows(Action::ReadPayload, &topic("orders.a")));
        assert!(rights.allows_anywhere(Action::Read) && !rights.allows_everywhere(Action::Read));
        assert!(!rights.allows_anywhere(Action::Submit));
    }

    #[test]
    fn deny_beats_allow_however_narrow_the_allow_is() {
        let allow = [rule(&Action::ON_TOPICS, &["orders.a", "*"])];
        let rights = Rights::new(&allow, &[rule(&[Action::Drop], &["orders.*"])], false);
        assert!(!rights.allows(Action::Drop, &topic("orders.a")));
        assert!(rights.allows(Action::Drop, &topic("payments")));
        assert!(rights.allows(Action::Cancel, &topic("orders.a")));
        assert!(!rights.allows_everywhere(Action::Drop) && rights.allows_anywhere(Action::Drop));
        assert!(rights.allows_everywhere(Action::Cancel));
    }

    #[test]
    fn a_denied_star_leaves_nothing_not_even_names_that_are_written_out() {
        let allow = [rule(&[Action::Submit], &["_schemas", "*"])];
        let rights = Rights::new(&allow, &[rule(&[Action::Submit], &["*"])], false);
        assert!(!rights.allows(Action::Submit, &topic("_schemas")));
        assert!(!rights.allows_anywhere(Action::Submit));
    }

    #[test]
    fn operate_is_never_implied_and_implies_nothing() {
        assert!(!Rights::new(&[rule(&Action::ON_TOPICS, &["*"])], &[], false).operates());
        let operator = Rights::new(&[], &[], true);
        assert!(operator.operates() && operator.allows_everywhere(Action::Operate));
        assert!(!operator.allows_anywhere(Action::Read));
    }

    #[test]
    fn a_topic_may_be_operated_without_the_cluster_and_a_deny_takes_one_from_an_operator() {
        let rules = [rule(&[Action::Operate], &["orders"])];
        let rights = Rights::new(&rules, &[], false);
        assert!(rights.allows(Action::Operate, &topic("orders")));
        assert!(!rights.allows(Action::Operate, &topic("payments")) && !rights.operates());
        assert!(rights.allows_anywhere(Action::Operate));
        assert!(!rights.allows_everywhere(Action::Operate));
        let operator = Rights::new(&[], &rules, true);
        assert!(operator.operates() && operator.allows(Action::Operate, &topic("payments")));
        assert!(!operator.allows(Action::Operate, &topic("orders")));
    }

    #[test]
    fn without_an_auth_file_everything_is_allowed() {
        let rights = Rights::everything();
        for action in Action::ON_TOPICS {
            assert!(rights.allows(action, &topic("_schemas")) && rights.allows_everywhere(action));
        }
        assert!(rights.operates());
    }

    proptest! {
        #[test]
        fn neither_the_order_nor_the_grouping_of_rules_matters(
            allow in prop::collection::vec("[ab]{0,2}\\*|[ab]{1,3}", 0..4),
            deny in prop::collection::vec("[ab]{0,2}\\*|[ab]{1,3}", 0..3),
            name in "[ab]{1,3}",
        ) {
            let one = |texts: &[String]| -> Vec<Rule> {
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                vec![rule(&[Action::Read], &texts)]
            };
            let many = |texts: &[String]| -> Vec<Rule> {
                texts.iter().rev().map(|text| rule(&[Action::Read], &[text])).collect()
            };
            let name = topic(&name);
            let matches = |texts: &[String]| {
                texts.iter().any(|text| Pattern::new(text).unwrap().denies(&name))
            };
            let rights = Rights::new(&one(&allow), &one(&deny), false);
            prop_assert_eq!(&rights, &Rights::new(&many(&allow), &many(&deny), false));
            let is_allowed = rights.allows(Action::Read, &name);
            prop_assert_eq!(is_allowed, matches(&allow) && !matches(&deny));
            prop_assert!(!is_allowed || rights.allows_anywhere(Action::Read));
            prop_assert!(is_allowed || !rights.allows_everywhere(Action::Read));
        }
    }
}
