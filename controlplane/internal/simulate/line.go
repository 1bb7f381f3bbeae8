package simulate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// line is one line of input, with what checking it has found.
type line struct {
	Request
	AtMs json.RawMessage `json:"at_ms"`
	AtNs json.RawMessage `json:"at_ns"`
	At   json.RawMessage `json:"at"`

	Metadata map[string]map[string]any `json:"metadata"`
	Proxy    *int                      `json:"proxy"`  // nil = the next one in turn
	Worker   *int                      `json:"worker"` // of the proxy, nil = the next one in turn
	Fail     string                    `json:"fail"`

	Op     string   `json:"op"` // empty for a request
	Rule   string   `json:"rule"`
	Key    []string `json:"key"`
	N      *uint32  `json:"n"`
	Limits []uint32 `json:"limits"`
	Window string   `json:"window"`
	File   string   `json:"file"`

	ID       *string           `json:"id"`
	Answer   *string           `json:"answer"` // the id of a request before
	Status   *uint32           `json:"status"`
	Chunk    *string           `json:"chunk"`
	Trailers map[string]Values `json:"trailers"`
	End      *bool             `json:"end"`
	Reset    *string           `json:"reset"`

	given map[string]json.RawMessage // all of them, by name

	ns       int64           // when
	time     json.RawMessage // as given
	unit     string          // the field it was given in: at_ms, at_ns or at
	policy   *policyFile     // of op policy
	answered bool            // it is a request, and a later line has a part of its answer
}

// policyFile is a valid policy and the JSON that the filter reads.
type policyFile struct {
	policy *policy.Policy
	json   []byte
}

// readPolicy judges a policy file. The JSON of the policy gets the management path
// by which operations reach the filter.
func readPolicy(file string, data []byte) (*policyFile, error) {
	p, node, _, err := policyfile.Read(file, data)
	if err != nil {
		return nil, err
	}
	_, doc := policy.SplitPlacement(node)
	doc.Fields = slices.DeleteFunc(doc.Fields, func(f policy.Field) bool { return f.Name == "manage" })
	text := policy.AppendJSON(nil, doc)
	text = append(text[:len(text)-1], `,"manage":`+manageJSON()+`}`...)
	return &policyFile{p, text}, nil
}

// What the input may have.
const (
	maxLineBytes  = 1 << 20
	maxInputBytes = 128 << 20
	maxLines      = 1_000_000
)

// reader reads and checks lines.
type reader struct {
	text    []byte // of all lines
	rest    []byte // of those to come
	dir     string // of the policy files that lines name, in it or below
	workers int
	proxies int
	number  int // of the last line

	asked map[string]*asked // by id
	known bool              // all lines have been checked
}

// newReader reads the requests, as many as there may be and a byte more.
func newReader(ctx context.Context, o Options) (*reader, error) {
	text, err := io.ReadAll(io.LimitReader(input.Until(ctx, o.Requests), maxInputBytes+1))
	if err != nil && !errors.Is(err, input.ErrInterrupted) {
		err = fmt.Errorf("read requests: %w", err)
	}
	return &reader{text: text, rest: text, dir: o.Dir, workers: o.Workers, proxies: o.Proxies}, err
}

// next returns the next line, io.EOF behind the last.
func (r *reader) next() (*line, error) {
	for len(r.rest) > 0 {
		var text []byte
		text, r.rest, _ = bytes.Cut(r.rest, []byte("\n"))
		r.number++
		switch {
		case len(text) >= maxLineBytes:
			return nil, fmt.Errorf("line %d: it has more than the %d bytes that a line may have", r.number, maxLineBytes)
		case len(r.text)-len(r.rest) > maxInputBytes || r.number > maxLines:
			return nil, fmt.Errorf("line %d: the requests are more than %d lines or %d bytes: simulate fewer at a time", r.number, maxLines, maxInputBytes)
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		l, err := r.read(text)
		if err == nil && !r.known {
			err = r.check(l)
		}
		if err != nil {
			err = fmt.Errorf("line %d: %w", r.number, err)
		}
		return l, err
	}
	return nil, io.EOF
}

// foresee checks all that is left, for what is to be known of later lines.
func (r *reader) foresee() (err error) {
	rest, number := r.rest, r.number
	for err == nil && !r.known {
		_, err = r.next()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	r.rest, r.number, r.known = rest, number, true
	return nil
}

// kinds are what a line may be, and the fields that each has beside op and its time. A
// request has no op.
var kinds = map[string]string{
	"": requestFields + " metadata proxy worker fail id", "policy": "file",
	"hit": keyed + " n limits", "peek": keyed + " n limits", "get": keyed + " limits", "reset": keyed, "expires_at": keyed,
	"inc": keyed + " n window", "set": keyed + " n window",
	"clean": "rule proxy worker fail", "stats": "rule proxy worker fail",
}

const (
	requestFields = "method host path headers client_ip route properties"
	keyed         = "rule key proxy worker fail"
	times         = "at_ms at_ns at"
)

func (r *reader) read(text []byte) (*line, error) {
	l, err := decode(text)
	if err != nil {
		return nil, err
	}
	has, known := kinds[l.Op]
	if l.Answer != nil {
		has = answerFields
	}
	switch {
	case !known:
		ops := slices.DeleteFunc(slices.Sorted(maps.Keys(kinds)), func(op string) bool { return op == "" })
		return nil, fmt.Errorf("op: unknown operation %q: it must be %s", l.Op, strings.Join(ops, ", "))
	case l.Op == "set" && l.N == nil:
		return nil, errors.New("n: op set needs the units to set")
	case l.Worker != nil && (*l.Worker < 0 || *l.Worker >= r.workers):
		return nil, fmt.Errorf("worker: %d is none of the %d workers, which count from 0", *l.Worker, r.workers)
	case l.Proxy != nil && (*l.Proxy < 0 || *l.Proxy >= r.proxies):
		return nil, fmt.Errorf("proxy: %d is none of the %d proxies, which count from 0", *l.Proxy, r.proxies)
	}
	_, err = faults(l.Fail)
	if err = errors.Join(l.only(has), err); err != nil {
		return nil, err
	}
	if err := l.readTime(); err != nil {
		return nil, err
	}
	switch {
	case l.Answer != nil:
		err = l.checkAnswer()
	case l.Op == "policy":
		l.policy, err = r.policyIn(l.File)
	default:
		err = l.Check()
	}
	return l, err
}

// decode decodes a line.
func decode(text []byte) (*line, error) {
	l := &line{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(l); err != nil {
		return nil, plain(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one JSON object")
	}
	return l, json.Unmarshal(text, &l.given)
}

// only refuses fields that a line of this kind would ignore.
func (l *line) only(has string) error {
	for name := range l.given {
		if !slices.Contains(strings.Fields(has+" op "+times), name) {
			what := "a request"
			switch {
			case l.Answer != nil:
				what = "an answer"
			case l.Op != "":
				what = "op " + l.Op
			}
			return fmt.Errorf("%s: %s has none, but %s", name, what, strings.Join(strings.Fields(has), ", "))
		}
	}
	return nil
}

// limits are those that a request would say, as an operation takes them.
func (l *line) limits() (texts []string) {
	for _, n := range l.Limits {
		texts = append(texts, strconv.FormatUint(uint64(n), 10))
	}
	return texts
}

// notInToken reports a character that no token of HTTP has, such as a method or a
// header's name.
func notInToken(r rune) bool {
	return r <= ' ' || r >= 0x7F || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}

// policyIn reads a policy beside the requests or below.
func (r *reader) policyIn(file string) (*policyFile, error) {
	if file == "" {
		return nil, errors.New("file: op policy needs the file of the new policy")
	}
	if !filepath.IsLocal(file) {
		return nil, fmt.Errorf("file: %q is not in the folder of the requests or below it", file)
	}
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	defer root.Close()
	text, err := input.FileIn(root, file, policy.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return readPolicy(filepath.Join(r.dir, file), text)
}

func (l *line) readTime() error {
	given := 0
	for unit, raw := range map[string]json.RawMessage{"at_ms": l.AtMs, "at_ns": l.AtNs, "at": l.At} {
		if raw != nil {
			given++
			l.unit, l.time = unit, raw
		}
	}
	if given != 1 {
		return errors.New("a line needs one time: at_ms, at_ns or at")
	}
	if l.unit == "at" {
		var text string
		if err := json.Unmarshal(l.time, &text); err != nil {
			return fmt.Errorf("at: %s is no text", l.time)
		}
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || at.Before(time.Unix(0, 0)) || at.Year() > maxYear {
			return fmt.Errorf("at: %q is no time like 2026-01-31T12:00:00Z from 1970 to %d", text, maxYear)
		}
		l.ns = at.UnixNano()
		return nil
	}
	scale := map[string]int64{"at_ms": int64(time.Millisecond), "at_ns": 1}[l.unit]
	n, err := strconv.ParseInt(string(l.time), 10, 64)
	if last := time.Date(maxYear, 12, 31, 0, 0, 0, 0, time.UTC).UnixNano() / scale; err != nil || n < 0 || n > last {
		return fmt.Errorf("%s: %s is no whole number from 0 to %d", l.unit, l.time, last)
	}
	l.ns = n * scale
	return nil
}

// maxYear leaves the longest window room below the end of 63-bit nanoseconds.
const maxYear = 2200

// plain says what is wrong with a line without the words of Go's decoder.
func plain(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		wrong.Field = strings.TrimPrefix(wrong.Field, "Request.")
		what := map[reflect.Kind]string{
			reflect.String: "text", reflect.Slice: "text or a list of texts", reflect.Map: "an object",
			reflect.Uint32: "a whole number from 0 to 4294967295", reflect.Bool: "true",
		}[wrong.Type.Kind()]
		if lists := map[string]string{"key": "a list of texts", "limits": "a list of whole numbers"}; wrong.Type.Kind() == reflect.Slice {
			what = cmp.Or(lists[wrong.Field], what)
		}
		if wrong.Field == "" && wrong.Type.Kind() == reflect.Struct {
			return fmt.Errorf("it must be a JSON object, not %s", wrong.Value)
		}
		return fmt.Errorf("%s: must be %s, not %s", wrong.Field, cmp.Or(what, "a whole number from 0"), wrong.Value)
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if errors.Is(err, io.ErrUnexpectedEOF) {
		text = "the JSON object has no end"
	}
	return errors.New(text)
}
