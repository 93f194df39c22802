package punctual_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	punctual "punctual.example/client"
	"punctual.example/client/punctualtest"
)

var (
	ctx   = context.Background()
	topic = os.Getenv("PUNCTUAL_TOPIC")
)

// clients returns those of the story of every client: tests/integration/clients.rs starts a node.
func clients(t *testing.T) (client, losing *punctual.Client) {
	if topic == "" {
		t.Skip("needs a node")
	}
	return open(t, os.Getenv("PUNCTUAL_URL")), open(t, os.Getenv("PUNCTUAL_LOSING_URL"))
}

func open(t *testing.T, url string, options ...punctual.Option) *punctual.Client {
	t.Helper()
	client, err := punctual.New(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%v, not %v", got, want)
	}
}

func later(name, key string, payload any) punctual.Draft {
	return punctual.Draft{Name: name, Key: &key, Payload: payload, Delay: time.Hour}
}

func TestASubmitWhoseAnswersAreLostMakesOneTask(t *testing.T) {
	client, losing := clients(t)
	task := must[punctual.Task](t)(losing.Submit(ctx, topic, later("a name/with ü", "named", map[string]int{"order": 1})))
	equal(t, task.State, "scheduled")
	again := must[punctual.Task](t)(client.Submit(ctx, topic, later("a name/with ü", "other", 2)))
	equal(t, again.ID, task.ID)
	key := "unnamed"
	draft := punctual.Draft{Key: &key, DueAt: time.Now().Add(time.Hour), Headers: map[string]any{"source": "tests"}}
	must[punctual.Task](t)(losing.Submit(ctx, topic, draft))
}

func TestAReplacementWhoseAnswersAreLostLeavesOneTask(t *testing.T) {
	client, losing := clients(t)
	first := must[punctual.Task](t)(client.Submit(ctx, topic, later("order-2", "first", 1)))
	task := must[punctual.Task](t)(losing.Replace(ctx, topic, "order-2", later("", "replaced", 2)))
	found, _, err := client.Get(ctx, topic, "order-2")
	equal(t, must[punctual.Task](t)(found, err).ID, task.ID)
	equal(t, must[punctual.Cancelled](t)(client.CancelByID(ctx, first.ID)).Verdict, punctual.VerdictReplaced)
}

func TestVerdictsAreValues(t *testing.T) {
	client, losing := clients(t)
	must[punctual.Task](t)(client.Submit(ctx, topic, later("order-3", "third", 3)))
	cancelled := must[punctual.Cancelled](t)(losing.Cancel(ctx, topic, "order-3"))
	equal(t, cancelled.Verdict, punctual.VerdictCancelled)
	equal(t, cancelled.Task.State, "cancelled")
	equal(t, must[punctual.Cancelled](t)(client.Cancel(ctx, topic, "nobody")).Verdict, punctual.VerdictNotFound)
	_, found, err := client.Get(ctx, topic, "nobody")
	equal(t, must[bool](t)(found, err), false)
	task := must[punctual.Task](t)(client.Submit(ctx, topic, punctual.Draft{Name: "order-4", PayloadBytes: []byte{0}}))
	for task.State != "published" {
		task, _, err = client.GetByID(ctx, task.ID)
		must[bool](t)(true, err)
	}
	equal(t, task.Receipt.Offset >= 0, true)
	equal(t, must[punctual.Cancelled](t)(client.CancelByID(ctx, task.ID)).Verdict, punctual.VerdictTooLate)
}

func TestAConsumerAnswersForItsAttempts(t *testing.T) {
	client, losing := clients(t)
	retry := &punctual.RetryPolicy{AttemptsMax: 3, BackoffMin: time.Second}
	tracked := punctual.Draft{Name: "order-6", Payload: 6, TTR: time.Hour, Retry: retry}
	wrong := punctual.Draft{Payload: 6, TTR: time.Millisecond}
	submitted := must[[]punctual.Result](t)(losing.SubmitMany(ctx, topic, []punctual.Draft{tracked, wrong}))
	equal(t, submitted[1].Problem.Field, "tasks[1].ttr")
	id := submitted[0].Task.ID
	for {
		task, _, err := client.GetByID(ctx, id)
		if must[punctual.Task](t)(task, err).State == "awaiting" {
			break
		}
	}
	in := time.Hour
	failure := punctual.Failure{Reason: "out of stock", RetryIn: &in}
	failed := must[punctual.Answered](t)(losing.Fail(ctx, id, 1, failure))
	equal(t, failed.Verdict, punctual.AnswerRetrying)
	equal(t, failed.TookEffect, true)
	late := must[punctual.Answered](t)(client.Extend(ctx, id, 1, time.Hour))
	equal(t, late.Verdict, punctual.AnswerAlreadyFailed)
	equal(t, late.TookEffect, false)
	answers := must[[]punctual.Result](t)(losing.Outcomes(ctx, []punctual.Outcome{
		{Call: "finish", Topic: topic, Name: "order-6"},
		{Call: "fail", ID: "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f", Attempt: 1, Failure: punctual.Failure{RetryAt: time.Now()}},
	}))
	equal(t, answers[0].Answered.Verdict, punctual.AnswerFinished)
	equal(t, answers[1].Answered.Verdict, punctual.AnswerNotFound)
	equal(t, must[punctual.Answered](t)(client.Finish(ctx, id, 1)).Task.State, "finished")
	var problem *punctual.Problem
	_, err := client.Fail(ctx, id, 0, punctual.Failure{})
	equal(t, errors.As(err, &problem) && problem.Field == "attempt", true)
}

func TestARefusedRequestIsAProblemWithAType(t *testing.T) {
	client, _ := clients(t)
	var problem *punctual.Problem
	_, err := client.Submit(ctx, "no-such-topic", later("", "none", 1))
	equal(t, errors.As(err, &problem) && problem.Slug == "unknown-topic" && problem.Status == 422, true)
	_, err = client.Submit(ctx, topic, punctual.Draft{Delay: -time.Hour})
	equal(t, errors.As(err, &problem) && problem.Field == "delay", true)
}

func TestAReplacementOfATaskThatMayBeDueIsNotRepeated(t *testing.T) {
	_, losing := clients(t)
	var failure *punctual.NoAnswer
	_, err := losing.Replace(ctx, topic, "order-5", punctual.Draft{Payload: 5})
	equal(t, errors.As(err, &failure) && failure.IsUnknown, true)
}

func TestATokenAndACAFileAreUsed(t *testing.T) {
	clients(t)
	url, ca := os.Getenv("PUNCTUAL_SECURE_URL"), punctual.CAFile(os.Getenv("PUNCTUAL_CA_FILE"))
	draft := later("", "secure", 6)
	must[punctual.Task](t)(open(t, url, ca, punctual.TokenFile(os.Getenv("PUNCTUAL_TOKEN_FILE"))).Submit(ctx, topic, draft))
	var problem *punctual.Problem
	_, err := open(t, url, ca).Submit(ctx, topic, draft)
	equal(t, errors.As(err, &problem) && problem.Slug == "unauthenticated", true)
	var failure *punctual.NoAnswer
	_, err = open(t, url).Submit(ctx, topic, draft)
	equal(t, errors.As(err, &failure) && !failure.IsUnknown, true)
}

func TestAMonthPassesInATest(t *testing.T) {
	clients(t)
	dev, month := punctualtest.Start(t, "orders:2"), 30*24*time.Hour
	key := "order-7"
	draft := punctual.Draft{Key: &key, Payload: 7, Delay: month}
	task := must[punctual.Task](t)(dev.Client().Submit(ctx, "orders", draft))
	equal(t, len(dev.Published("orders")), 0)
	dev.Advance(month)
	records := dev.Published("orders")
	equal(t, len(records), 1)
	equal(t, string(records[0].Payload), "7")
	equal(t, records[0].Headers[punctual.HeaderTaskID], task.ID)
}

func TestWithoutANodeNothingWasDone(t *testing.T) {
	var failure *punctual.NoAnswer
	_, err := open(t, "http://127.0.0.1:1", punctual.RetryFor(300*time.Millisecond)).Submit(ctx, "demo", later("", "none", 1))
	equal(t, errors.As(err, &failure) && !failure.IsUnknown, true)
}

func TestATokenIsNotSentInClearOverTheNetwork(t *testing.T) {
	_, err := punctual.New("http://punctual.example:7070", punctual.Token("pt_1"))
	equal(t, err != nil, true)
}

func TestTheWorkOfATaskSucceedsOnce(t *testing.T) {
	once, broken := punctual.NewOnce(2), errors.New("broken")
	_, err := once.Run("1", func() error { return broken })
	equal(t, err, broken)
	for _, ran := range []bool{true, false} {
		equal(t, must[bool](t)(once.Run("1", func() error { return nil })), ran)
	}
}
