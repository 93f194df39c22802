package punctual

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Condition limits a change. If it does not hold, nothing is changed, and the call returns a
// *Problem with the Slug precondition-failed. A call with a condition is not repeated once it may
// have been done. With an id that HTTP cannot carry, without ids, or with two conditions of the
// same kind, such as IfLater and IfAbsent, the call returns an error and sends nothing.
type Condition func(*condition)

// IfMatch: the name has the task of one of these ids. "*" is any task, schedule, or policy.
func IfMatch(ids ...string) Condition { return tagged("If-Match", ids) }

// IfNoneMatch: the name has none of the tasks of these ids. "*" is any task, schedule, or policy.
func IfNoneMatch(ids ...string) Condition { return tagged("If-None-Match", ids) }

// IfRevision: the topic or the schedule has this Revision.
func IfRevision(revision int64) Condition { return IfMatch(strconv.FormatInt(revision, 10)) }

// IfAbsent lets a Replace replace no pending task.
func IfAbsent() Condition { return with("when", "absent") }

// IfEarlier lets a Replace replace a pending task only by one that is due earlier.
func IfEarlier() Condition { return with("when", "earlier") }

// IfLater lets a Replace replace a pending task only by one that is due later.
func IfLater() Condition { return with("when", "later") }

// NotAfter is the latest due time of the new task, together with IfLater.
func NotAfter(limit time.Time) Condition {
	return with("not_after", limit.Format(time.RFC3339Nano))
}

// condition has the headers and the query of all conditions of a request, or the error of one.
type condition struct {
	header http.Header
	query  url.Values
	err    error
}

func conditionOf(conditions []Condition) condition {
	all := condition{header: http.Header{}, query: url.Values{}}
	for _, one := range conditions {
		one(&all)
	}
	return all
}

// of returns a path with the query of a condition.
func (condition condition) of(path string) string {
	if len(condition.query) == 0 {
		return path
	}
	return path + "?" + condition.query.Encode()
}

// safeFor returns for how long a call is repeated that may have been done. With a condition, a
// repetition could be refused because of what an earlier attempt has done, and the problem would
// say that nothing was changed.
func (condition condition) safeFor(otherwise time.Duration) time.Duration {
	if len(condition.header)+len(condition.query) > 0 {
		return 0
	}
	return otherwise
}

func with(parameter, value string) Condition {
	return func(condition *condition) {
		if condition.query.Has(parameter) {
			condition.err = errors.New("a second " + parameter + " in a condition")
			return
		}
		condition.query.Set(parameter, value)
	}
}

func tagged(header string, ids []string) Condition {
	return func(condition *condition) {
		tags, err := tagsOf(ids)
		if err == nil && condition.header.Get(header) != "" {
			err = errors.New("a second " + header + " in a condition: give all ids to one")
		}
		if err != nil {
			condition.err = err
			return
		}
		condition.header.Set(header, tags)
	}
}

func tagsOf(ids []string) (string, error) {
	switch {
	case len(ids) == 1 && ids[0] == "*":
		return "*", nil
	case len(ids) == 0:
		return "", errors.New("a condition has no ids")
	}
	for _, id := range ids {
		// A tag of HTTP has no spaces, quotes and control characters.
		isWrong := func(char rune) bool { return char <= ' ' || char == '"' || char > '~' }
		if id == "" || id == "*" || strings.ContainsFunc(id, isWrong) {
			return "", fmt.Errorf(`%q in a condition is not an id or a revision; "*" stands alone`, id)
		}
	}
	return `"` + strings.Join(ids, `", "`) + `"`, nil
}
