package simulate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// line is one line of input, from when it is decoded until its output is written. It has only the fields of
// its kind. Without a line, Request describes a request that the filter is to explain.
type line struct {
	AtMs json.RawMessage `json:"at_ms"`
	AtNs json.RawMessage `json:"at_ns"`
	At   json.RawMessage `json:"at"`

	Request
	Metadata map[string]map[string]any `json:"metadata"`
	Proxy    *int                      `json:"proxy"`  // nil = the next one in turn
	Worker   *int                      `json:"worker"` // of the proxy, nil = the next one in turn
	Fail     string                    `json:"fail"`
	ID       *string                   `json:"id"`

	Op     string   `json:"op"` // empty for a request and an answer
	Rule   string   `json:"rule"`
	Key    []string `json:"key"`
	N      *uint32  `json:"n"`
	Limits []uint32 `json:"limits"`
	Window string   `json:"window"`
	File   string   `json:"file"`

	Answer   *string           `json:"answer"` // the id of a request before
	Status   *uint32           `json:"status"`
	Chunk    *string           `json:"chunk"`
	Trailers map[string]Values `json:"trailers"`
	End      *bool             `json:"end"`
	Reset    *string           `json:"reset"`

	ns         int64           // when
	time       json.RawMessage // as given
	unit       string          // the field it was given in: at_ms, at_ns or at
	policy     *fleet.Policy   // of op policy
	isAnswered bool            // of a request: a later line has a part of its answer
}

// kind is what a line is.
type kind int

const (
	requestLine kind = iota
	operationLine
	policyLine
	answerLine
)

func (l *line) kind() kind {
	switch {
	case l.Answer != nil:
		return answerLine
	case l.Op == opPolicy:
		return policyLine
	case l.Op != "":
		return operationLine
	}
	return requestLine
}

const (
	opPolicy = "policy"
	opStats  = "stats"
)

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
	return l, nil
}

// plain says what is wrong with a line without the words of Go's decoder.
func plain(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON object has no end")
	case !errors.As(err, &wrong):
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	field, kind := strings.TrimPrefix(wrong.Field, "Request."), wrong.Type.Kind()
	if field == "" && kind == reflect.Struct {
		return fmt.Errorf("it must be a JSON object, not %s", wrong.Value)
	}
	lists := map[string]string{"key": "a list of texts", "limits": "a list of whole numbers"}
	kinds := map[reflect.Kind]string{
		reflect.String: "text", reflect.Slice: "text or a list of texts", reflect.Map: "an object",
		reflect.Uint32: "a whole number from 0 to 4294967295", reflect.Bool: "true",
	}
	must := cmp.Or(kinds[kind], "a whole number from 0")
	if kind == reflect.Slice {
		must = cmp.Or(lists[field], must)
	}
	return fmt.Errorf("%s: must be %s, not %s", field, must, wrong.Value)
}

// readTime reads when the line happens.
func (l *line) readTime() error {
	given := 0
	for unit, raw := range map[string]json.RawMessage{"at_ms": l.AtMs, "at_ns": l.AtNs, "at": l.At} {
		if raw != nil {
			given++
			l.unit = unit
			l.time = raw
		}
	}
	if given != 1 {
		return errors.New("a line needs one time: at_ms, at_ns or at")
	}
	var err error
	switch l.unit {
	case "at_ms":
		l.ns, err = l.readNumber(time.Millisecond)
	case "at_ns":
		l.ns, err = l.readNumber(time.Nanosecond)
	case "at":
		l.ns, err = l.readText()
	}
	return err
}

func (l *line) readNumber(unit time.Duration) (ns int64, err error) {
	last := time.Date(fleet.LastYear, 12, 31, 0, 0, 0, 0, time.UTC).UnixNano() / int64(unit)
	n, err := strconv.ParseInt(string(l.time), 10, 64)
	if err != nil || n < 0 || n > last {
		return 0, fmt.Errorf("%s: %s is not a whole number from 0 to %d", l.unit, l.time, last)
	}
	return n * int64(unit), nil
}

func (l *line) readText() (ns int64, err error) {
	var text string
	if err := json.Unmarshal(l.time, &text); err != nil {
		return 0, fmt.Errorf("at: %s is not a text", l.time)
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !fleet.IsTime(at) {
		return 0, fmt.Errorf("at: %q is not a time like 2026-01-31T12:00:00Z from 1970 to %d", text, fleet.LastYear)
	}
	return at.UnixNano(), nil
}

// toRequest makes the request that the filter sees.
func (l *line) toRequest() *sim.Request {
	f, _ := faults(l.Fail)
	r := &sim.Request{
		Method: l.Method, Host: l.Host, Path: l.Path, ClientIP: l.ClientIP, Route: l.Route, Faults: f,
		Headers: sorted(l.Headers), HasBody: policy.MayHaveBody(l.Method),
		Properties: make(map[string][]byte, len(l.Properties)),
		Metadata:   make(map[string]*structpb.Struct, len(l.Metadata)),
	}
	for namespace, values := range l.Metadata {
		r.Metadata[namespace], _ = structpb.NewStruct(values) // JSON always is one
	}
	for name, value := range l.Properties {
		r.Properties[name] = []byte(value)
	}
	return r
}

// operation is the line's operation.
func (l *line) operation() counters.Request {
	o := counters.Request{Name: l.Op, Rule: l.Rule, Key: l.Key, N: 1, Window: l.Window, Limits: l.limits()}
	if l.N != nil {
		o.N = *l.N
	}
	return o
}

// at is where the line happens.
func (l *line) at() fleet.At {
	return fleet.At{Proxy: l.Proxy, Worker: l.Worker, QuotaCut: l.Fail == failQuota}
}

// limits are those that a request would say, as an operation takes them.
func (l *line) limits() (texts []string) {
	for _, n := range l.Limits {
		texts = append(texts, strconv.FormatUint(uint64(n), 10))
	}
	return texts
}

// failQuota is the fault of a line during which the quota service cannot be reached.
const failQuota = "quota"

// faults reads which host calls of a line fail.
func faults(text string) (*sim.Faults, error) {
	switch text {
	case "", failQuota:
		return nil, nil
	case "get":
		return &sim.Faults{Get: true}, nil
	case "set":
		return &sim.Faults{Set: true}, nil
	}
	count, ok := strings.CutPrefix(text, "cas:")
	n, err := strconv.ParseUint(count, 10, 31)
	if !ok || err != nil {
		return nil, fmt.Errorf("fail: %q must be get, set, quota or cas:N", text)
	}
	return &sim.Faults{CAS: int(n)}, nil
}
