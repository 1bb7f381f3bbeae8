package simulate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The most that answers may take.
const (
	longestAnswerNs = 7 * 24 * int64(time.Hour)
	maxOpen         = 100_000 // requests that wait for their answers
	maxIDBytes      = 256
)

const answerFields = "answer status headers chunk trailers end reset"

// checkAnswer refuses a part of an answer that no upstream gives.
func (l *line) checkAnswer() error {
	switch {
	case l.Op != "":
		return errors.New("op: an answer has none, but " + strings.Join(strings.Fields(answerFields), ", "))
	case l.Status == nil && l.Chunk == nil && l.Trailers == nil && l.End == nil && l.Reset == nil:
		return errors.New("answer: the line says nothing of it: it needs status, chunk, trailers, end or reset")
	case l.Status != nil && *l.Status != 101 && (*l.Status < 200 || *l.Status > 599):
		return fmt.Errorf("status: %d is no status of an answer: it must be from 200 to 599, or 101", *l.Status)
	case l.Status == nil && l.Headers != nil:
		return errors.New("headers: they come with the answer's status")
	}
	return errors.Join(l.checkEnd(), checkNames("headers", l.Headers), checkNames("trailers", l.Trailers))
}

func (l *line) checkEnd() error {
	switch {
	case l.End != nil && !*l.End:
		return errors.New("end: must be true, or left out where the answer goes on")
	case l.Reset != nil && *l.Reset != resetClient && *l.Reset != resetUpstream:
		return fmt.Errorf("reset: %q must be client or upstream", *l.Reset)
	case l.Reset != nil && (l.End != nil || l.Trailers != nil):
		return errors.New("reset: the answer has ended on the same line")
	}
	return nil
}

// Who resets a stream.
const (
	resetClient   = "client"
	resetUpstream = "upstream"
)

// lastPart reports whether nothing follows the line's part of the answer. Trailers are last.
func (l *line) lastPart() bool { return l.End != nil || l.Trailers != nil || l.Reset != nil }

// asked is what is known of a request with an id.
type asked struct {
	line     int   // of the request
	ns       int64 // of its last line
	fromNs   int64 // of the request
	answered bool  // it has a line with a part of its answer
	status   bool  // such a line had the status
	ended    int   // line of the answer's last part, 0 = there is none yet
}

// check refuses ids that say nothing, and parts of answers out of order.
func (r *reader) check(l *line) error {
	switch {
	case l.ID != nil:
		return r.ask(*l.ID, l.ns)
	case l.Answer != nil:
		return r.checkPart(l)
	}
	return nil
}

func (r *reader) ask(id string, ns int64) error {
	before := r.asked[id]
	switch {
	case id == "" || len(id) > maxIDBytes:
		return fmt.Errorf("id: it has %d bytes, and must have from 1 to %d", len(id), maxIDBytes)
	case before != nil:
		return fmt.Errorf("id: %q is that of line %d", id, before.line)
	case r.asked == nil:
		r.asked = map[string]*asked{}
	}
	r.asked[id] = &asked{line: r.number, ns: ns, fromNs: ns}
	return nil
}

func (r *reader) checkPart(l *line) error {
	a := r.asked[*l.Answer]
	switch {
	case a == nil:
		return fmt.Errorf("answer: no request before has the id %q", *l.Answer)
	case a.ended != 0:
		return fmt.Errorf("answer: the answer to %q has ended on line %d", *l.Answer, a.ended)
	case l.ns < a.ns:
		return fmt.Errorf("%s: it is before that of the last line with %q", l.unit, *l.Answer)
	case l.ns-a.fromNs > longestAnswerNs:
		return fmt.Errorf("%s: an answer takes 7 days at most from its request", l.unit)
	case l.Status != nil && a.status:
		return fmt.Errorf("status: the answer to %q has one already", *l.Answer)
	case l.Status == nil && !a.status && (l.Reset == nil || l.Chunk != nil):
		return fmt.Errorf("status: the answer to %q has none yet, so it must begin with it", *l.Answer)
	}
	a.ns, a.answered, a.status = l.ns, true, a.status || l.Status != nil
	if l.lastPart() {
		a.ended = r.number
	}
	return nil
}

// sorted are the fields of a map of headers, in lower case and by name.
func sorted(all map[string]Values) (list [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, value := range all[name] {
			list = append(list, [2]string{strings.ToLower(name), value})
		}
	}
	return list
}

func checkNames(field string, headers map[string]Values) error {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if name == "" || strings.ContainsFunc(name, notInToken) {
			return fmt.Errorf("%s: %q is no header name", field, name)
		}
	}
	return nil
}
