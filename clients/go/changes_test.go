package punctual_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	punctual "punctual.example/client"
	"punctual.example/client/punctualtest"
)

const absentID = "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"

func TestAChangeIsMadeOnlyUnderItsCondition(t *testing.T) {
	client, _ := clients(t)
	name, draft, task := "order-12", later("", "changed", 1), must[punctual.Task](t)
	first := task(client.Replace(ctx, topic, name, draft, punctual.IfNoneMatch("*"))).ID
	due := time.Now().Add(2 * time.Hour)
	sooner := punctual.Draft{Payload: 2, DueAt: due}
	in := punctual.In(time.Hour)
	_, created := client.Replace(ctx, topic, name, draft, punctual.IfNoneMatch("*"))
	_, added := client.Replace(ctx, topic, name, draft, punctual.IfAbsent())
	_, hastened := client.Replace(ctx, topic, name, sooner, punctual.IfEarlier())
	_, replaced := client.Replace(ctx, topic, name, draft, punctual.IfMatch(absentID))
	_, moved := client.Move(ctx, topic, name, in, punctual.IfMatch(absentID))
	_, cancelled := client.Cancel(ctx, topic, name, punctual.IfNoneMatch(absentID, first))
	var problem *punctual.Problem
	for _, err := range []error{created, added, hastened, replaced, moved, cancelled} {
		equal(t, errors.As(err, &problem) && problem.Slug == "precondition-failed", true)
		equal(t, problem.CurrentID, first)
	}
	_, cancelled = client.CancelByID(ctx, first, punctual.IfMatch(absentID))
	_, moved = client.MoveByID(ctx, first, in, punctual.IfMatch(absentID))
	for _, err := range []error{cancelled, moved} {
		equal(t, errors.As(err, &problem) && problem.Status == 412, true)
	}
	there := must[punctual.Moved](t)(client.Move(ctx, topic, name, in, punctual.IfMatch(absentID, first)))
	equal(t, there.Verdict, punctual.MoveMoved)
	draft.Delay = 3 * time.Hour
	second := task(client.Replace(ctx, topic, name, draft, punctual.IfLater(), punctual.NotAfter(due)))
	equal(t, second.DueAt.Before(due.Add(time.Second)), true)
	ended := must[punctual.Cancelled](t)(client.Cancel(
		ctx, topic, name, punctual.IfMatch(second.ID), punctual.IfNoneMatch(first)))
	equal(t, ended.Verdict, punctual.VerdictCancelled)
}

func TestACallWithAConditionIsNotRepeatedOnceItMayBeDone(t *testing.T) {
	client, losing := clients(t)
	name, draft, isThere := "order-13", later("", "changed", 1), punctual.IfMatch("*")
	_, created := losing.Replace(ctx, topic, name, draft, punctual.IfNoneMatch("*"))
	draft.Delay = 2 * time.Hour
	_, delayed := losing.Replace(ctx, topic, name, draft, punctual.IfLater())
	_, moved := losing.Move(ctx, topic, name, punctual.In(time.Hour), isThere)
	_, cancelled := losing.Cancel(ctx, topic, name, isThere)
	for _, err := range []error{created, delayed, moved, cancelled} {
		var failure *punctual.NoAnswer
		equal(t, errors.As(err, &failure) && failure.IsUnknown, true)
	}
	task, _, err := client.Get(ctx, topic, name)
	equal(t, must[punctual.Task](t)(task, err).State, "cancelled")
}

func TestAConditionNeedsIDsThatHTTPCanCarry(t *testing.T) {
	client := open(t, "http://127.0.0.1:1", punctual.RetryFor(0))
	wrong := [][]string{{}, {"1", "*"}}
	for _, id := range []string{"", "a\nb", "1\n", `a"b`, "a b", "ü", "\x7f", "\xff"} {
		wrong = append(wrong, []string{id}, []string{"1", id})
	}
	for _, ids := range wrong {
		is, isNot := punctual.IfMatch(ids...), punctual.IfNoneMatch(ids...)
		_, replaced := client.Replace(ctx, "demo", "order-1", later("", "none", 1), isNot)
		_, cancelled := client.Cancel(ctx, "demo", "order-1", is, punctual.IfNoneMatch("1"))
		_, moved := client.Move(ctx, "demo", "order-1", punctual.In(time.Hour), is)
		_, set := client.SetPolicy(ctx, "demo", punctual.Policy{}, is)
		_, _, deleted := client.DeleteSchedule(ctx, "demo", "poll", is)
		for _, err := range []error{replaced, cancelled, moved, set, deleted} {
			contains(t, fmt.Sprint(err), "a condition")
			var failure *punctual.NoAnswer
			equal(t, errors.As(err, &failure), false)
		}
	}
}

func TestAConditionOfAKindIsGivenOnce(t *testing.T) {
	client := open(t, "http://127.0.0.1:1", punctual.RetryFor(0))
	for _, twice := range [][]punctual.Condition{
		{punctual.IfMatch("1"), punctual.IfMatch("2")},
		{punctual.IfMatch("1"), punctual.IfRevision(2)},
		{punctual.IfNoneMatch("1"), punctual.IfMatch("1"), punctual.IfNoneMatch("*")},
		{punctual.IfAbsent(), punctual.IfLater()},
		{punctual.IfLater(), punctual.NotAfter(time.Now()), punctual.NotAfter(time.Now())},
	} {
		_, err := client.Replace(ctx, "demo", "order-1", later("", "none", 1), twice...)
		contains(t, fmt.Sprint(err), "in a condition")
	}
}

func TestABackfillMakesNoRunTwice(t *testing.T) {
	clients(t)
	dev, backfill := punctualtest.Start(t, "orders:2"), must[punctual.Backfilled](t)
	client := dev.Client()
	draft := punctual.ScheduleDraft{Every: time.Hour, Paused: true}
	must[punctual.Schedule](t)(client.SetSchedule(ctx, "orders", "poll", draft))
	last := punctual.BackfillRange{Last: 3 * time.Hour, DryRun: true}
	would := backfill(client.BackfillSchedule(ctx, "orders", "poll", last))
	equal(t, fmt.Sprint(would.Made, would.AlreadyMade, len(would.Runs)), "3 0 3")
	part := punctual.BackfillRange{From: would.Runs[0], To: would.Runs[1]}
	first := backfill(client.BackfillSchedule(ctx, "orders", "poll", part))
	equal(t, fmt.Sprint(first), fmt.Sprint(punctual.Backfilled{Made: 1, Runs: would.Runs[:1]}))
	part.To = would.Runs[2]
	both := backfill(client.BackfillSchedule(ctx, "orders", "poll", part))
	equal(t, fmt.Sprint(both.Made, both.AlreadyMade), "1 1")
	dev.Advance(time.Second)
	equal(t, len(dev.Published("orders")), 2)
	var problem *punctual.Problem
	last.Last = 8 * 24 * time.Hour
	_, err := client.BackfillSchedule(ctx, "orders", "poll", last)
	equal(t, errors.As(err, &problem) && problem.Field == "last", true)
	_, err = client.BackfillSchedule(ctx, "orders", "nobody", part)
	equal(t, errors.As(err, &problem) && problem.Slug == "schedule-not-found", true)
}

func TestAScheduleIsChangedOnlyUnderItsCondition(t *testing.T) {
	clients(t)
	client, schedule := punctualtest.Start(t, "orders:2").Client(), must[punctual.Schedule](t)
	draft, isNew := punctual.ScheduleDraft{Every: time.Hour, Payload: 1}, punctual.IfNoneMatch("*")
	made := schedule(client.SetSchedule(ctx, "orders", "poll", draft, isNew))
	stale := punctual.IfRevision(made.Revision)
	draft.Payload = 2
	changed := schedule(client.SetSchedule(ctx, "orders", "poll", draft, stale))
	_, created := client.SetSchedule(ctx, "orders", "poll", draft, isNew)
	_, replaced := client.SetSchedule(ctx, "orders", "poll", draft, stale)
	_, _, deleted := client.DeleteSchedule(ctx, "orders", "poll", stale)
	var problem *punctual.Problem
	for _, err := range []error{created, replaced, deleted} {
		equal(t, errors.As(err, &problem) && problem.Slug == "precondition-failed", true)
	}
	current := punctual.IfRevision(changed.Revision)
	last, _, err := client.DeleteSchedule(ctx, "orders", "poll", current)
	equal(t, string(schedule(last, err).Payload), "2")
}

func TestAPolicyIsSetChangedAndDeleted(t *testing.T) {
	clients(t)
	dev, change := punctualtest.Start(t, "orders:2"), must[punctual.Topic](t)
	client := dev.Client()
	known, _, err := client.GetTopic(ctx, "orders")
	equal(t, change(known, err).Policy, nil)
	isPaused, retry := true, punctual.RetryPolicy{AttemptsMax: 3, BackoffMin: time.Minute}
	policy := punctual.Policy{
		TTR: 30 * time.Second, Retry: &retry, DelayMax: 90*24*time.Hour + time.Millisecond,
		ExpireAfter: 90 * time.Minute, PendingMax: 1000, SubmittedByHeader: true, Paused: &isPaused,
	}
	made := change(client.SetPolicy(ctx, "orders", policy))
	equal(t, made.Paused != nil, true)
	equal(t, made.Policy.Retry.BackoffMin, time.Minute)
	// The other limits of a retry policy are the defaults.
	policy.Retry, policy.Paused = made.Policy.Retry, nil
	equal(t, *made.Policy, policy)
	policy.Spread = 10 * time.Minute
	stale := punctual.IfRevision(made.Revision)
	changed := change(client.SetPolicy(ctx, "orders", policy, stale))
	equal(t, changed.Paused != nil, true)
	known, _, err = client.GetTopic(ctx, "orders")
	equal(t, *change(known, err).Policy.Retry, *policy.Retry)
	equal(t, known.Policy.Spread, policy.Spread)
	_, replaced := client.SetPolicy(ctx, "orders", policy, stale)
	_, created := client.SetPolicy(ctx, "orders", policy, punctual.IfNoneMatch("*"))
	_, deleted := client.DeletePolicy(ctx, "orders", stale)
	var problem *punctual.Problem
	for _, err := range []error{replaced, created, deleted} {
		equal(t, errors.As(err, &problem) && problem.Slug == "precondition-failed", true)
	}
	current := punctual.IfRevision(changed.Revision)
	equal(t, change(client.DeletePolicy(ctx, "orders", current)).Policy, nil)
	_, err = client.SetPolicy(ctx, "orders", punctual.Policy{Spread: 48 * time.Hour})
	equal(t, errors.As(err, &problem) && problem.Field == "spread", true)
}
