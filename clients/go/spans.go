package punctual

import (
	"errors"
	"fmt"
	"time"
)

// errBytes refuses bytes that encoding/json would write as text.
var errBytes = errors.New("Payload is bytes, which are not JSON: set PayloadBytes")

// checkSpans refuses durations below a millisecond: Delay: 5 is 5 nanoseconds.
func checkSpans(spans map[string]time.Duration) error {
	for field, span := range spans {
		if span != 0 && span.Abs() < time.Millisecond {
			return fmt.Errorf(
				"%s is %v, below a millisecond: give a unit, such as 5*time.Second", field, span)
		}
	}
	return nil
}

func (draft Draft) check() error {
	if _, isBytes := draft.Payload.([]byte); isBytes {
		return errBytes
	}
	spans := map[string]time.Duration{"Delay": draft.Delay, "TTR": draft.TTR}
	return checkSpans(draft.Retry.addTo(spans))
}

func (policy Policy) check() error {
	return checkSpans(policy.Retry.addTo(map[string]time.Duration{
		"TTR": policy.TTR, "DelayMax": policy.DelayMax, "ExpireAfter": policy.ExpireAfter,
		"Spread": policy.Spread,
	}))
}

// addTo adds the durations of a retry policy, which may be nil, to others.
func (policy *RetryPolicy) addTo(spans map[string]time.Duration) map[string]time.Duration {
	if policy != nil {
		spans["BackoffMin"], spans["BackoffMax"] = policy.BackoffMin, policy.BackoffMax
	}
	return spans
}

func (outcome Outcome) check() error {
	spans := map[string]time.Duration{"By": outcome.By}
	if outcome.Failure.RetryIn != nil {
		spans["RetryIn"] = *outcome.Failure.RetryIn
	}
	return checkSpans(spans)
}

func (draft ScheduleDraft) check() error {
	spans := map[string]time.Duration{
		"Every": draft.Every, "Phase": draft.Phase, "Spread": draft.Spread,
	}
	if draft.Missed != nil {
		spans["Within"] = draft.Missed.Within
	}
	if err := checkSpans(spans); err != nil {
		return err
	}
	return draft.record().check()
}
