package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The fields that a line may have beside op and its time.
const (
	requestFields = "method host path headers client_ip route properties"
	answerFields  = "answer status headers chunk trailers end reset"
	keyFields     = "rule key proxy worker fail"
	timeFields    = "at_ms at_ns at"
)

// opFields are the fields of a line, by its op. A request has no op.
var opFields = map[string]string{
	"":     requestFields + " metadata proxy worker fail id",
	"hit":  keyFields + " n limits",
	"peek": keyFields + " n limits",
	"get":  keyFields + " limits",
	"inc":  keyFields + " n window",
	"set":  keyFields + " n window",

	"reset":      keyFields,
	"expires_at": keyFields,
	"clean":      "rule proxy worker fail",
	opStats:      "rule proxy worker fail",
	opPolicy:     "file",
}

// What the input may have.
const (
	maxLineBytes  = 1 << 20
	maxInputBytes = 128 << 20
	maxLines      = 1_000_000

	maxIDBytes      = 256
	longestAnswerNs = 7 * 24 * int64(time.Hour)
)

// lines is the input after all its lines were checked. It keeps their text alone: a line is decoded
// to be checked, and again when its time has come. All lines decoded would take many times the memory.
// They cannot be checked as they happen, either: a request must know whether a later line answers it.
type lines struct {
	text     []byte
	dir      string // of the policy files that lines name, in it or below
	workers  int
	proxies  int
	firstNs  int64                    // -1 = there is no line
	policies map[string]*fleet.Policy // that lines name, by file
	asked    map[string]*asked        // requests with an id, by id
}

// readInput reads all lines, and checks them.
func readInput(ctx context.Context, o Options) (*lines, error) {
	text, err := io.ReadAll(io.LimitReader(input.Until(ctx, o.Requests), maxInputBytes+1))
	if errors.Is(err, input.ErrInterrupted) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	in := &lines{
		text: text, dir: o.Dir, workers: o.Workers, proxies: o.Proxies, firstNs: -1,
		policies: map[string]*fleet.Policy{}, asked: map[string]*asked{},
	}
	return in, in.each(ctx, in.check)
}

// each calls a function with each line that is not blank, up to the first error.
func (in *lines) each(ctx context.Context, do func(number int, line []byte) error) error {
	number := 0
	for rest := in.text; len(rest) > 0; {
		if ctx.Err() != nil {
			return input.ErrInterrupted
		}
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte("\n"))
		number++
		switch {
		case len(line) >= maxLineBytes:
			return fmt.Errorf("line %d: it has more than the %d bytes that a line may have", number, maxLineBytes)
		case len(in.text)-len(rest) > maxInputBytes || number > maxLines:
			return fmt.Errorf("line %d: the requests are more than %d lines or %d bytes: simulate fewer at a time",
				number, maxLines, maxInputBytes)
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if err := do(number, line); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return nil
}

// read reads a line that was checked before.
func (in *lines) read(text []byte) (*line, error) {
	l, err := decode(text)
	if err != nil {
		return nil, err
	}
	if l.ID != nil {
		l.isAnswered = in.asked[*l.ID].isAnswered
	}
	l.policy = in.policies[l.File]
	return l, l.readTime()
}

// check checks a line, and its place among the lines before it.
func (in *lines) check(number int, text []byte) error {
	l, err := decode(text)
	if err != nil {
		return err
	}
	if err := in.checkLine(l, text); err != nil {
		return err
	}
	if in.firstNs < 0 {
		in.firstNs = l.ns
	}
	switch {
	case l.kind() == policyLine:
		return in.addPolicy(l.File)
	case l.ID != nil:
		return in.addAsked(l, number)
	case l.Answer != nil:
		return in.addPart(l, number)
	}
	return nil
}

// checkLine checks a line by itself.
func (in *lines) checkLine(l *line, text []byte) error {
	fields, isKnown := opFields[l.Op]
	if l.kind() == answerLine {
		fields = answerFields
	}
	switch {
	case !isKnown:
		return fmt.Errorf("op: unknown operation %q: it must be %s", l.Op, operations())
	case l.Op == "set" && l.N == nil:
		return errors.New("n: op set needs the units to set")
	case l.Worker != nil && (*l.Worker < 0 || *l.Worker >= in.workers):
		return fmt.Errorf("worker: there is no worker %d: the %d workers count from 0", *l.Worker, in.workers)
	case l.Proxy != nil && (*l.Proxy < 0 || *l.Proxy >= in.proxies):
		return fmt.Errorf("proxy: there is no proxy %d: the %d proxies count from 0", *l.Proxy, in.proxies)
	}
	_, err := faults(l.Fail)
	err = errors.Join(l.checkFields(text, fields), err)
	if err != nil {
		return err
	}
	if err := l.readTime(); err != nil {
		return err
	}
	if l.kind() == answerLine {
		return l.checkAnswer()
	}
	return l.Check()
}

func operations() string {
	ops := slices.DeleteFunc(slices.Sorted(maps.Keys(opFields)), func(op string) bool { return op == "" })
	return strings.Join(ops, ", ")
}

// checkFields rejects fields that a line of this kind would ignore.
func (l *line) checkFields(text []byte, fields string) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(text, &given); err != nil {
		return err
	}
	what := "a request"
	switch {
	case l.Answer != nil:
		what = "an answer"
	case l.Op != "":
		what = "op " + l.Op
	}
	known := strings.Fields(fields)
	for name := range given {
		if !slices.Contains(known, name) && name != "op" && !slices.Contains(strings.Fields(timeFields), name) {
			return fmt.Errorf("%s: %s has none, but %s", name, what, strings.Join(known, ", "))
		}
	}
	return nil
}

// Which side resets a stream.
const (
	resetClient   = "client"
	resetUpstream = "upstream"
)

// checkAnswer rejects a part of an answer that no upstream gives.
func (l *line) checkAnswer() error {
	switch {
	case l.Op != "":
		return errors.New("op: an answer has none, but " + strings.Join(strings.Fields(answerFields), ", "))
	case l.Status == nil && l.Chunk == nil && l.Trailers == nil && l.End == nil && l.Reset == nil:
		return errors.New("answer: the line says nothing of it: it needs status, chunk, trailers, end or reset")
	case l.Status != nil && *l.Status != 101 && (*l.Status < 200 || *l.Status > 599):
		return fmt.Errorf("status: %d is not a status of an answer: it must be from 200 to 599, or 101", *l.Status)
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

// isLastPart reports whether nothing follows the line's part of the answer. Trailers are last.
func (l *line) isLastPart() bool { return l.End != nil || l.Trailers != nil || l.Reset != nil }

// addPolicy reads a policy beside the requests or below.
func (in *lines) addPolicy(file string) error {
	switch {
	case file == "":
		return errors.New("file: op policy needs the file of the new policy")
	case !filepath.IsLocal(file):
		return fmt.Errorf("file: %q is not in the folder of the requests or below it", file)
	case in.policies[file] != nil:
		return nil
	}
	root, err := os.OpenRoot(in.dir)
	if err != nil {
		return fmt.Errorf("read policy: %w", err)
	}
	defer root.Close()
	text, err := input.FileIn(root, file, policy.MaxBytes)
	if err != nil {
		return fmt.Errorf("read policy: %w", err)
	}
	in.policies[file], err = fleet.ReadPolicy(filepath.Join(in.dir, file), text)
	return err
}

// asked is what is known of a request with an id. It begins at the request's line and grows with those of
// its answer, while lines are checked. While they happen, only isAnswered is read.
type asked struct {
	line       int   // of the request
	fromNs     int64 // of the request
	lastNs     int64 // of the last line with its id
	isAnswered bool  // a line has a part of its answer
	hasStatus  bool  // such a line had the status
	ended      int   // line of the answer's last part, 0 = there is none yet
}

// addAsked notes a request with an id.
func (in *lines) addAsked(l *line, number int) error {
	id := *l.ID
	before := in.asked[id]
	switch {
	case id == "" || len(id) > maxIDBytes:
		return fmt.Errorf("id: it has %d bytes, and must have from 1 to %d", len(id), maxIDBytes)
	case before != nil:
		return fmt.Errorf("id: line %d has %q, too", before.line, id)
	}
	in.asked[id] = &asked{line: number, fromNs: l.ns, lastNs: l.ns}
	return nil
}

// addPart notes a part of an answer, if it comes in the order of an answer.
func (in *lines) addPart(l *line, number int) error {
	id := *l.Answer
	a := in.asked[id]
	switch {
	case a == nil:
		return fmt.Errorf("answer: no request before has the id %q", id)
	case a.ended != 0:
		return fmt.Errorf("answer: the answer to %q has ended on line %d", id, a.ended)
	case l.ns < a.lastNs:
		return fmt.Errorf("%s: it is before that of the last line with %q", l.unit, id)
	case l.ns-a.fromNs > longestAnswerNs:
		return fmt.Errorf("%s: an answer takes 7 days at most from its request", l.unit)
	case l.Status != nil && a.hasStatus:
		return fmt.Errorf("status: the answer to %q has one already", id)
	case l.Status == nil && !a.hasStatus && (l.Reset == nil || l.Chunk != nil):
		return fmt.Errorf("status: the answer to %q has none yet, so it must begin with it", id)
	}
	a.lastNs = l.ns
	a.isAnswered = true
	a.hasStatus = a.hasStatus || l.Status != nil
	if l.isLastPart() {
		a.ended = number
	}
	return nil
}
