package punctual_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
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

// answering returns a client of a server that answers all requests alike, and their number. The
// last of the statuses is that of all further answers.
func answering(t *testing.T, text string, statuses ...int) (*punctual.Client, *atomic.Int32) {
	t.Helper()
	count := &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(
		func(writer http.ResponseWriter, request *http.Request) {
			writer.WriteHeader(statuses[min(int(count.Add(1)), len(statuses))-1])
			fmt.Fprint(writer, text)
		}))
	t.Cleanup(server.Close)
	return open(t, server.URL, punctual.RetryFor(2*time.Second)), count
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

func TestAPoppedTaskIsFinished(t *testing.T) {
	client, _ := clients(t)
	draft := later("order-11", "popped", 11)
	draft.Delay, draft.TTR = 0, time.Hour
	task := must[punctual.Task](t)(client.Submit(ctx, topic, draft))
	pop := punctual.Pop{Group: "go", Wait: 5 * time.Second, Max: 100}
	var mine punctual.PoppedTask
	for end := time.Now().Add(time.Minute); mine.ID == "" && time.Now().Before(end); {
		for _, popped := range must[[]punctual.PoppedTask](t)(client.Pop(ctx, topic, pop)) {
			if popped.ID == task.ID {
				mine = popped
			}
		}
	}
	if mine.ID == "" {
		t.Fatal("the task was not popped")
	}
	equal(t, mine.Attempt, 1)
	equal(t, *mine.Key, "popped")
	equal(t, string(mine.Payload), "11")
	equal(t, mine.FinishBy.After(time.Now().Add(30*time.Minute)), true)
	finished := must[punctual.Answered](t)(client.Finish(ctx, mine.ID, mine.Attempt))
	equal(t, finished.Verdict, punctual.AnswerFinished)
	now := punctual.Pop{Group: "go", Wait: -time.Second}
	none := must[[]punctual.PoppedTask](t)(client.Pop(ctx, topic, now))
	equal(t, len(none), 0)
	_, err := client.Pop(ctx, topic, punctual.Pop{Group: "go", Wait: time.Hour})
	contains(t, fmt.Sprint(err), "give less than the timeout")
}

func TestACallbackIsSetAndDeleted(t *testing.T) {
	client, _ := clients(t)
	there := func(callback punctual.Callback, isThere bool, err error) bool {
		must[punctual.Callback](t)(callback, err)
		return isThere
	}
	equal(t, there(client.GetCallback(ctx, topic)), false)
	draft := punctual.CallbackDraft{
		URL: "https://jobs.example.com/orders", Headers: map[string]string{"authorization": "secret"},
		Timeout: 5 * time.Second, Paused: true,
	}
	made := must[punctual.Callback](t)(client.SetCallback(ctx, topic, draft))
	equal(t, made.Timeout, "5s")
	equal(t, made.Paused, true)
	known, _, err := client.GetCallback(ctx, topic)
	equal(t, must[punctual.Callback](t)(known, err).Revision, made.Revision)
	equal(t, strings.Join(known.HeaderNames, ","), "authorization")
	equal(t, there(client.DeleteCallback(ctx, topic)), true)
	equal(t, there(client.DeleteCallback(ctx, topic)), false)
	var problem *punctual.Problem
	_, err = client.SetCallback(ctx, topic, punctual.CallbackDraft{URL: "https://example.org/"})
	equal(t, errors.As(err, &problem) && problem.Field == "url", true)
}

func TestAMoveWhoseAnswersAreLostMovesTheTask(t *testing.T) {
	client, losing := clients(t)
	move := must[punctual.Moved](t)
	task := must[punctual.Task](t)(client.Submit(ctx, topic, later("order-7", "moved", 7)))
	moved := move(losing.Move(ctx, topic, "order-7", punctual.In(2*time.Hour)))
	equal(t, moved.Verdict, punctual.MoveMoved)
	equal(t, moved.Task.ID, task.ID)
	due := punctual.At(time.Date(2030, 1, 31, 9, 30, 0, 0, time.UTC))
	moved = move(client.MoveByID(ctx, task.ID, due))
	equal(t, moved.Task.DueAt.Format(time.RFC3339), "2030-01-31T09:30:00Z")
	must[punctual.Task](t)(client.Replace(ctx, topic, "order-7", later("", "moved", 8)))
	equal(t, move(client.MoveByID(ctx, task.ID, due)).Verdict, punctual.MoveReplaced)
	must[punctual.Cancelled](t)(client.Cancel(ctx, topic, "order-7"))
	moved = move(client.Move(ctx, topic, "order-7", due))
	equal(t, moved.Verdict, punctual.MoveTooLate)
	equal(t, moved.Task.State, "cancelled")
	nobody := move(client.Move(ctx, topic, "nobody", due))
	equal(t, nobody, punctual.Moved{Verdict: punctual.MoveNotFound})
	var problem *punctual.Problem
	_, err := client.Move(ctx, topic, "order-7", punctual.In(-time.Hour))
	equal(t, errors.As(err, &problem) && problem.Field == "delay", true)
}

func TestAMoveOfATaskThatMayBeDueIsNotRepeated(t *testing.T) {
	client, losing := clients(t)
	must[punctual.Task](t)(client.Submit(ctx, topic, later("order-8", "moved", 8)))
	var failure *punctual.NoAnswer
	_, err := losing.Move(ctx, topic, "order-8", punctual.In(0))
	equal(t, errors.As(err, &failure) && failure.IsUnknown, true)
}

// waitFor waits until a task has a state.
func waitFor(t *testing.T, client *punctual.Client, id, state string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		task, _, err := client.GetByID(ctx, id)
		if must[punctual.Task](t)(task, err).State == state {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the task is %s, not %s", task.State, state)
		}
	}
}

func TestADeadLetterIsRedrivenOnce(t *testing.T) {
	client, losing := clients(t)
	many, redriven := must[punctual.Redriven](t), punctual.Redriven{Count: 1}
	var ids []string
	for _, name := range []string{"order-9", "order-10"} {
		draft := punctual.Draft{Name: name, Payload: 9, TTR: time.Hour}
		task := must[punctual.Task](t)(client.Submit(ctx, topic, draft))
		waitFor(t, client, task.ID, "awaiting")
		failure := punctual.Failure{Reason: "out of stock", Final: true}
		must[punctual.Answered](t)(client.Fail(ctx, task.ID, 1, failure))
		ids = append(ids, task.ID)
	}
	var dead []punctual.Task
	for end := time.Now().Add(time.Minute); len(dead) < 2 && time.Now().Before(end); {
		page, next, err := client.DeadLetters(ctx, topic, "")
		dead = must[[]punctual.Task](t)(page, err)
		equal(t, next, "")
	}
	equal(t, dead[0].ID+dead[1].ID, ids[0]+ids[1])
	contains(t, dead[0].Reason, "out of stock")
	task, isThere, err := losing.Redrive(ctx, ids[0], "")
	equal(t, must[punctual.Task](t)(task, err).ID, ids[0])
	equal(t, isThere, true)
	waitFor(t, client, ids[0], "awaiting")
	dry := punctual.RedriveRange{DryRun: true}
	equal(t, many(client.RedriveMany(ctx, topic, dry)), redriven)
	early := punctual.RedriveRange{DueTo: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
	equal(t, many(client.RedriveMany(ctx, topic, early)), punctual.Redriven{})
	_, _, toOther := client.Redrive(ctx, ids[1], "no-such-topic")
	_, allToOther := client.RedriveMany(ctx, topic, punctual.RedriveRange{ToTopic: "no-such-topic"})
	var problem *punctual.Problem
	for _, err := range []error{toOther, allToOther} {
		equal(t, errors.As(err, &problem) && problem.Slug == "unknown-topic", true)
	}
	equal(t, many(client.RedriveMany(ctx, topic, punctual.RedriveRange{})), redriven)
	_, isThere, err = client.Redrive(ctx, "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f", "")
	equal(t, must[bool](t)(isThere, err), false)
	for _, id := range ids {
		waitFor(t, client, id, "awaiting")
		must[punctual.Answered](t)(client.Finish(ctx, id, 0))
	}
}

func TestAPauseWhoseAnswersAreLostPausesTheTopic(t *testing.T) {
	client, losing := clients(t)
	t.Cleanup(func() { client.ResumeTopic(ctx, topic, "") })
	change := must[punctual.Topic](t)
	paused := change(losing.PauseTopic(ctx, topic, "the consumer fails")).Paused
	equal(t, paused.Reason, "the consumer fails")
	equal(t, time.Since(paused.Since).Abs() < 5*time.Minute, true)
	known, _, err := client.GetTopic(ctx, topic)
	equal(t, *change(known, err).Paused, *paused)
	task := must[punctual.Task](t)(client.Submit(ctx, topic, punctual.Draft{Payload: 11}))
	equal(t, must[punctual.Cancelled](t)(client.CancelByID(ctx, task.ID)).Verdict, punctual.VerdictCancelled)
	equal(t, change(losing.ResumeTopic(ctx, topic, "")).Paused, nil)
	_, isThere, err := client.GetTopic(ctx, "no-such-topic")
	equal(t, must[bool](t)(isThere, err), false)
	var problem *punctual.Problem
	_, err = client.PauseTopic(ctx, "no-such-topic", "")
	equal(t, errors.As(err, &problem) && problem.Slug == "unknown-topic", true)
}

func TestAScheduleWhoseAnswersAreLostIsThereOnce(t *testing.T) {
	client, losing := clients(t)
	change, name := must[punctual.Schedule](t), "a schedule/with ü"
	draft := punctual.ScheduleDraft{
		Every: time.Hour, Phase: 30 * time.Minute, Payload: "poll",
		StartsAt: time.Date(2030, 1, 31, 9, 30, 0, 0, time.UTC),
	}
	made := change(losing.SetSchedule(ctx, topic, name, draft))
	equal(t, made.Revision, 1)
	equal(t, made.NextRunAt, draft.StartsAt)
	equal(t, string(made.Payload), `"poll"`)
	equal(t, change(losing.PauseSchedule(ctx, topic, name)).Paused, true)
	equal(t, change(losing.ResumeSchedule(ctx, topic, name)).Paused, false)
	var failure *punctual.NoAnswer
	_, err := losing.TriggerSchedule(ctx, topic, name)
	equal(t, errors.As(err, &failure) && failure.IsUnknown, true)
	// An attempt without an answer has deleted it.
	_, isThere, err := losing.DeleteSchedule(ctx, topic, name)
	equal(t, must[bool](t)(isThere, err), false)
	_, isThere, err = client.GetSchedule(ctx, topic, name, 0)
	equal(t, must[bool](t)(isThere, err), false)
}

func TestTheErrorOfAGatewayDoesNotTellWhatWasDone(t *testing.T) {
	clients(t)
	url := os.Getenv("PUNCTUAL_LOSING_URL")
	stalled := open(t, url+"/stalled", punctual.Timeout(time.Second), punctual.RetryFor(0))
	for _, client := range []*punctual.Client{open(t, url+"/gateway"), stalled} {
		var failure *punctual.NoAnswer
		_, err := client.TriggerSchedule(ctx, topic, "poll")
		equal(t, errors.As(err, &failure) && failure.IsUnknown, true)
	}
}

func TestAFailureAfterSomePartsLeavesTheOthersWithTheirProblem(t *testing.T) {
	clients(t)
	drafts := []punctual.Draft{{Payload: 0}, {Payload: 1}, {Payload: 2}}
	for way, second := range map[string]string{"refused": "unavailable", "lost": "outcome-unknown"} {
		url := os.Getenv("PUNCTUAL_LOSING_URL") + "/partly-" + way
		client := open(t, url, punctual.RetryFor(3*time.Second))
		results := must[[]punctual.Result](t)(client.SubmitMany(ctx, topic, drafts))
		equal(t, results[0].Task.State, "scheduled")
		equal(t, results[1].Problem.Slug, second)
		equal(t, results[2].Problem.Slug, "outcome-unknown")
	}
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
	failing := &failing{TB: t}
	dev, month := punctualtest.Start(failing, "orders:2"), 30*24*time.Hour
	key := "order-7"
	draft := punctual.Draft{Key: &key, Payload: 7, Delay: month}
	task := must[punctual.Task](t)(dev.Client().Submit(ctx, "orders", draft))
	equal(t, len(dev.Published("orders")), 0)
	dev.Advance(month)
	records := dev.Published("orders")
	equal(t, len(records), 1)
	equal(t, string(records[0].Payload), "7")
	equal(t, records[0].Headers[punctual.HeaderTaskID], any(task.ID))
	failing.run(func() { dev.Published("ordres") })
	contains(t, failing.said, "no such topic")
	failing.run(func() { dev.Advance(30) })
	contains(t, failing.said, "below a millisecond")
}

func TestAScheduleRunsUntilItIsPaused(t *testing.T) {
	clients(t)
	dev, change := punctualtest.Start(t, "orders:2"), must[punctual.Schedule](t)
	client := dev.Client()
	day := func(day, hour, minute int) time.Time {
		return time.Date(2029, 12, day, hour, minute, 0, 0, time.UTC)
	}
	workdays := punctual.ScheduleDraft{
		Cron: "0 30 2 * * 1-5", Seconds: true, TimeZone: "Europe/Berlin", StartsAt: day(25, 0, 0),
		Exclude: []time.Time{day(26, 0, 0)}, DST: &punctual.DST{Gap: "skip", Overlap: "both"},
		Missed: &punctual.MissedRuns{Policy: "all", Within: 2 * time.Hour, CountMax: 5},
	}
	preview := change(client.PreviewSchedule(ctx, "orders", "nightly", workdays, 2))
	equal(t, fmt.Sprint(preview.NextRuns), fmt.Sprint([]time.Time{day(25, 1, 30), day(27, 1, 30)}))
	_, isThere, err := client.GetSchedule(ctx, "orders", "nightly", 0)
	equal(t, must[bool](t)(isThere, err), false)

	key := "poll"
	poll := punctual.ScheduleDraft{Every: time.Hour, Key: &key, Payload: 1}
	change(client.SetSchedule(ctx, "orders", "poll", poll))
	dev.Advance(time.Hour)
	equal(t, string(dev.Published("orders")[0].Payload), "1")
	equal(t, change(client.PauseSchedule(ctx, "orders", "poll")).NextRunAt.IsZero(), true)
	dev.Advance(2 * time.Hour)
	equal(t, len(dev.Published("orders")), 1)
	must[punctual.Task](t)(client.TriggerSchedule(ctx, "orders", "poll"))
	dev.Advance(time.Second)
	equal(t, len(dev.Published("orders")), 2)
	known, _, err := client.GetSchedule(ctx, "orders", "poll", 3)
	equal(t, len(change(known, err).NextRuns), 0)

	paused := punctual.ScheduleDraft{Every: time.Hour, Paused: true}
	for number := 100; number < 201; number++ {
		change(client.SetSchedule(ctx, "orders", fmt.Sprint("poll-", number), paused))
	}
	page, next, err := client.Schedules(ctx, "orders", "")
	equal(t, len(must[[]punctual.Schedule](t)(page, err)), 100)
	page, next, err = client.Schedules(ctx, "orders", next)
	equal(t, must[[]punctual.Schedule](t)(page, err)[1].Name, "poll-200")
	equal(t, next, "")
	deleted, _, err := client.DeleteSchedule(ctx, "orders", "poll")
	equal(t, change(deleted, err).Name, "poll")
	var problem *punctual.Problem
	_, err = client.ResumeSchedule(ctx, "orders", "poll")
	equal(t, errors.As(err, &problem) && problem.Slug == "schedule-not-found", true)
}

func TestWithoutANodeNothingWasDone(t *testing.T) {
	var failure *punctual.NoAnswer
	_, err := open(t, "http://127.0.0.1:1", punctual.RetryFor(300*time.Millisecond)).Submit(ctx, "demo", later("", "none", 1))
	equal(t, errors.As(err, &failure) && !failure.IsUnknown, true)
}

func TestARefusalOfAProxyIsAProblem(t *testing.T) {
	for text, status := range map[string]int{
		"<html>404 Not Found</html>": 404, "": 413, "[]": 400, `{"message":"Forbidden"}`: 403,
		`{"type":"about:blank","status":"error","field":7}`: 422,
	} {
		client, count := answering(t, text, status)
		_, submitted := client.Submit(ctx, "demo", later("", "none", 1))
		_, _, got := client.Get(ctx, "demo", "order-1")
		_, answered := client.Finish(ctx, "7", 1)
		for _, err := range []error{submitted, got, answered} {
			var problem *punctual.Problem
			equal(t, errors.As(err, &problem) && problem.Slug == "" && problem.Status == status, true)
			equal(t, problem.Detail, "the answer is not of Punctual")
			equal(t, err.Error(), fmt.Sprintf("status %d: %s", status, problem.Detail))
		}
		equal(t, count.Load(), 3)
	}
}

func TestAnotherAnswerOfAProxyIsNone(t *testing.T) {
	for _, answer := range []struct {
		status    int
		text      string
		isUnknown bool
	}{
		{429, "slow down", false},
		{408, "[]", false},
		{200, "<html>a login</html>", true},
		{502, "<html>bad gateway</html>", true},
		{503, `{"message":"Service Unavailable"}`, true},
	} {
		client, count := answering(t, answer.text, answer.status)
		_, err := client.Submit(ctx, "demo", later("", "none", 1))
		contains(t, fmt.Sprint(err), fmt.Sprintf("status %d: the answer is not", answer.status))
		var failure *punctual.NoAnswer
		equal(t, errors.As(err, &failure) && failure.IsUnknown == answer.isUnknown, true)
		equal(t, count.Load() > 1, true)
	}
}

func TestARefusalOfAProxyDoesNotTellOfAnEarlierAttempt(t *testing.T) {
	client, count := answering(t, "<html>of a proxy</html>", 502, 404)
	_, err := client.Submit(ctx, "demo", later("", "none", 1))
	contains(t, fmt.Sprint(err), "status 404: the answer is not")
	var failure *punctual.NoAnswer
	equal(t, errors.As(err, &failure) && failure.IsUnknown, true)
	equal(t, count.Load(), 2)
}

func TestACallerThatWasDeniedTooOftenDoesNotRepeat(t *testing.T) {
	text := `{"type":"urn:punctual:problem:denied-too-often","status":429}`
	client, count := answering(t, text, 429)
	_, err := client.Submit(ctx, "demo", later("", "none", 1))
	var failure *punctual.NoAnswer
	equal(t, errors.As(err, &failure), false)
	var problem *punctual.Problem
	equal(t, errors.As(err, &problem) && problem.Slug == "denied-too-often", true)
	equal(t, count.Load(), 1)
}

func TestAVerdictOfALaterVersionIsItsText(t *testing.T) {
	client, _ := answering(t, `{"verdict":"postponed"}`, 200)
	cancelled := must[punctual.Cancelled](t)(client.Cancel(ctx, "demo", "order-1"))
	equal(t, cancelled.Verdict, "postponed")
	moved := must[punctual.Moved](t)(client.Move(ctx, "demo", "order-1", punctual.In(time.Hour)))
	equal(t, moved.Verdict, "postponed")
	finished := must[punctual.Answered](t)(client.Finish(ctx, "7", 1))
	equal(t, finished.Verdict, "postponed")
	equal(t, finished.TookEffect, true)
}

func TestATokenIsNotSentInClearOverTheNetwork(t *testing.T) {
	_, err := punctual.New("http://punctual.example:7070", punctual.Token("pt_1"))
	equal(t, err != nil, true)
}

func TestATokenThatHTTPCannotCarryIsRefused(t *testing.T) {
	for _, token := range []string{"pt_1\nx", "pt_1\n", "pt 1", "ü"} {
		_, err := punctual.New("http://127.0.0.1:1", punctual.Token(token))
		contains(t, fmt.Sprint(err), "a token is one line")
	}
}

func TestANumberIsNoLengthOfTime(t *testing.T) {
	client, bare := open(t, "http://127.0.0.1:1", punctual.RetryFor(0)), time.Duration(5)
	extend := punctual.Outcome{ID: "1", Call: "extend", Attempt: 1, By: 5}
	drafts := []punctual.Draft{
		{Delay: 5}, {Delay: -5}, {TTR: 30}, {Retry: &punctual.RetryPolicy{BackoffMin: 1}},
		{Retry: &punctual.RetryPolicy{BackoffMax: 1}},
	}
	var errs []error
	for _, draft := range drafts {
		_, submitted := client.Submit(ctx, "demo", draft)
		_, together := client.SubmitMany(ctx, "demo", []punctual.Draft{draft})
		_, replaced := client.Replace(ctx, "demo", "order-1", draft)
		errs = append(errs, submitted, together, replaced)
	}
	_, moved := client.Move(ctx, "demo", "order-1", punctual.In(bare))
	for _, draft := range []punctual.ScheduleDraft{
		{Every: 5}, {Every: time.Hour, Phase: 5}, {Every: time.Hour, TTR: 5},
		{Every: time.Hour, Missed: &punctual.MissedRuns{Within: 5}},
	} {
		_, scheduled := client.SetSchedule(ctx, "demo", "poll", draft)
		errs = append(errs, moved, scheduled)
	}
	_, failed := client.Fail(ctx, "1", 1, punctual.Failure{RetryIn: &bare})
	_, extended := client.Extend(ctx, "1", 1, bare)
	_, answered := client.Outcomes(ctx, []punctual.Outcome{extend})
	_, popped := client.Pop(ctx, "demo", punctual.Pop{Group: "mailer", Wait: 5})
	callback := punctual.CallbackDraft{URL: "https://jobs.example.com", Timeout: 5}
	_, called := client.SetCallback(ctx, "demo", callback)
	_, filled := client.BackfillSchedule(ctx, "demo", "poll", punctual.BackfillRange{Last: 5})
	for _, policy := range []punctual.Policy{
		{ExpireAfter: 5}, {TTR: time.Hour, Retry: &punctual.RetryPolicy{BackoffMin: 5}},
	} {
		_, set := client.SetPolicy(ctx, "demo", policy)
		errs = append(errs, set)
	}
	for _, err := range append(errs, failed, extended, answered, popped, called, filled) {
		contains(t, fmt.Sprint(err), "below a millisecond: give a unit")
	}
}

func TestAMoveNeedsADueTime(t *testing.T) {
	client := open(t, "http://127.0.0.1:1", punctual.RetryFor(0))
	for _, due := range []punctual.Due{{}, punctual.At(time.Time{})} {
		_, err := client.Move(ctx, "demo", "order-1", due)
		contains(t, fmt.Sprint(err), "a move needs a due time")
	}
}

func TestBytesAreNoPayload(t *testing.T) {
	client := open(t, "http://127.0.0.1:1", punctual.RetryFor(0))
	_, err := client.Submit(ctx, "demo", punctual.Draft{Delay: time.Hour, Payload: []byte("1")})
	contains(t, fmt.Sprint(err), "set PayloadBytes")
}

func TestADevServerNeedsItsProgram(t *testing.T) {
	t.Setenv("PUNCTUAL_BIN", "no-punctual")
	failing := &failing{TB: t}
	failing.run(func() { punctualtest.Start(failing, "orders") })
	contains(t, failing.said, "no program `no-punctual` on the PATH; set PUNCTUAL_BIN")
}

// failing is a test that is expected to fail.
type failing struct {
	testing.TB
	said string
}

func (failing *failing) Fatalf(format string, values ...any) {
	failing.said = fmt.Sprintf(format, values...)
	runtime.Goexit()
}

// run ends with the work, or where it fails.
func (failing *failing) run(work func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		work()
	}()
	<-ended
}

func contains(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatalf("%q is not in %q", part, text)
	}
}

func TestTheWorkOfATaskSucceedsOnce(t *testing.T) {
	once, broken := punctual.NewOnce(2), errors.New("broken")
	_, err := once.Run("1", func() error { return broken })
	equal(t, err, broken)
	for _, ran := range []bool{true, false} {
		equal(t, must[bool](t)(once.Run("1", func() error { return nil })), ran)
	}
}

func TestASignatureOfOneOfTheKeysIsGenuine(t *testing.T) {
	key, other := "a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5", "a2V5IHR3byBrZXkgdHdvIGtleSB0d28ga2V5"
	digest := "c9762b2a2c7c6d1c6402686ecf40a8651d6d1f9b3a6149cc986fa0098419bd69"
	signature := "t=1700000000,v1=" + strings.Repeat("0", 64) + ",v1=" + digest
	body, ever := []byte(`{"a":1}`), 100_000*24*time.Hour
	equal(t, punctual.IsGenuine([]string{other, key}, signature, "orders", body, ever), true)
	equal(t, punctual.IsGenuine([]string{key}, signature, "orders", body, 5*time.Minute), false)
	equal(t, punctual.IsGenuine([]string{other}, signature, "orders", body, ever), false)
	equal(t, punctual.IsGenuine([]string{key}, signature, "other", body, ever), false)
	equal(t, punctual.IsGenuine([]string{key}, signature, "orders", []byte(`{"a":2}`), ever), false)
	for _, wrong := range []string{"", "t=x", "v1=" + digest, "t=1700000000", "t=1700000000,v1=ü"} {
		equal(t, punctual.IsGenuine([]string{key}, wrong, "orders", body, ever), false)
	}
	// Lines of the file that are no keys. Anybody can sign with an empty one.
	lines := []string{"", "# from May on", "bm8ga2V5"}
	forged := "t=1700000000,v1=6cde8cf8039aa61608e23e4308366f55e7ae30b6ab33a6db6a9cbb7d21ea6682"
	equal(t, punctual.IsGenuine(lines, forged, "orders", body, ever), false)
	lines = append(lines, key+"\n")
	equal(t, punctual.IsGenuine(lines, signature, "orders", body, ever), true)
}
