package simulate

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// line is one line of input, checked.
type line struct {
	number  int
	ns      int64           // when
	time    json.RawMessage // as given
	unit    string          // the field it was given in: at_ms, at_ns or at
	op      string          // empty for a request
	proxy   int             // -1 = the next one in turn
	worker  int             // of the proxy, -1 = the next one in turn
	request *fields
	policy  *policyFile // of op policy
}

// fields are a line as JSON has it.
type fields struct {
	AtMs json.RawMessage `json:"at_ms"`
	AtNs json.RawMessage `json:"at_ns"`
	At   json.RawMessage `json:"at"`

	Method     string            `json:"method"`
	Host       string            `json:"host"`
	Path       string            `json:"path"`
	Headers    map[string]values `json:"headers"`
	ClientIP   string            `json:"client_ip"`
	Properties map[string]string `json:"properties"`
	Proxy      *int              `json:"proxy"`
	Worker     *int              `json:"worker"`
	Fail       string            `json:"fail"`

	Op     string   `json:"op"`
	Rule   string   `json:"rule"`
	Key    []string `json:"key"`
	N      *uint32  `json:"n"`
	Window string   `json:"window"`
	File   string   `json:"file"`

	Route    string                    `json:"route"`
	Metadata map[string]map[string]any `json:"metadata"`
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
	doc := *node
	doc.Fields = slices.DeleteFunc(slices.Clone(node.Fields), func(f policy.Field) bool { return f.Name == "manage" })
	text := policy.AppendJSON(nil, &doc)
	text = append(text[:len(text)-1], `,"manage":`+manageJSON()+`}`...)
	return &policyFile{p, text}, nil
}

// All lines are in memory before the first is simulated, so they are bounded,
// and so are the policies that they name.
const (
	maxLineBytes   = 1 << 20
	maxInputBytes  = 128 << 20
	maxLines       = 1_000_000
	maxPolicyBytes = 16 << 20
)

// reader checks the whole input before anything is simulated.
type reader struct {
	dir      string // of the policy files that lines name, in it or below
	workers  int
	proxies  int
	current  *policyFile            // in force at the line being read
	policies map[string]*policyFile // read so far, by the name in the lines
	bytes    int                    // of those policies
}

// readAll returns all lines, or the first problem with its line number.
func (r *reader) readAll(in io.Reader) ([]line, error) {
	var lines []line
	buffered, total := bufio.NewReaderSize(in, maxLineBytes), 0
	for number := 1; ; number++ {
		text, err := buffered.ReadSlice('\n')
		ended := errors.Is(err, io.EOF)
		total += len(text)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("line %d: it has more than the %d bytes that a line may have", number, maxLineBytes)
		case errors.Is(err, input.ErrInterrupted):
			return nil, err
		case err != nil && !ended:
			return nil, fmt.Errorf("read requests: %w", err)
		case total > maxInputBytes || len(lines) == maxLines && len(text) > 0:
			return nil, fmt.Errorf("line %d: the requests are more than %d lines or %d bytes: simulate fewer at a time", number, maxLines, maxInputBytes)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			l, err := r.read(text)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
			l.number = number
			lines = append(lines, l)
		}
		if ended {
			return lines, nil
		}
	}
}

func (r *reader) read(text []byte) (line, error) {
	in := &fields{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(in); err != nil {
		return line{}, plain(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return line{}, errors.New("there is more than one JSON object")
	}
	l := line{request: in, op: in.Op, proxy: -1, worker: -1}
	if err := l.readTime(in); err != nil {
		return line{}, err
	}
	if in.Worker != nil {
		l.worker = *in.Worker
		if l.worker < 0 || l.worker >= r.workers {
			return line{}, fmt.Errorf("worker: %d is none of the %d workers, which count from 0", l.worker, r.workers)
		}
	}
	if in.Proxy != nil {
		l.proxy = *in.Proxy
		if l.proxy < 0 || l.proxy >= r.proxies {
			return line{}, fmt.Errorf("proxy: %d is none of the %d proxies, which count from 0", l.proxy, r.proxies)
		}
	}
	if _, err := faults(in.Fail); err != nil {
		return line{}, err
	}
	switch in.Op {
	case "":
		if err := in.only("a request", ""); err != nil {
			return line{}, err
		}
		return l, in.check()
	case "policy":
		if err := in.only("op policy", "file"); err != nil {
			return line{}, err
		}
		return r.readPolicyLine(l)
	}
	kind, known := operations[in.Op]
	if !known {
		return line{}, fmt.Errorf("op: unknown operation %q: it must be policy, %s", in.Op, strings.Join(slices.Sorted(maps.Keys(operations)), ", "))
	}
	if err := in.only("op "+in.Op, "rule"); err != nil {
		return line{}, err
	}
	return l, r.checkOperation(in, kind)
}

// operations are the operations and what each takes.
var operations = map[string]takes{
	"hit": {key: true, n: true}, "peek": {key: true, n: true},
	"get": {key: true}, "reset": {key: true}, "expires_at": {key: true},
	"inc": {key: true, n: true, window: true}, "set": {key: true, n: true, window: true},
	"clean": {}, "stats": {},
}

// takes says which fields an operation has beside rule.
type takes struct{ key, n, window bool }

// only refuses fields that a line of this kind would ignore.
func (in *fields) only(kind, has string) error {
	request := in.Method != "" || in.Host != "" || in.Path != "" || in.Headers != nil ||
		in.ClientIP != "" || in.Properties != nil || in.Route != "" || in.Metadata != nil
	operation := in.Rule != "" || in.Key != nil || in.N != nil || in.Window != ""
	switch {
	case request && has != "":
		return fmt.Errorf("%s has no method, host, path, headers, client_ip, properties, route or metadata", kind)
	case operation && has != "rule":
		return fmt.Errorf("%s has no rule, key, n or window", kind)
	case in.File != "" && has != "file":
		return fmt.Errorf("%s has no file", kind)
	case has == "file" && in.isPlaced():
		return fmt.Errorf("%s has no proxy, worker or fail", kind)
	}
	return nil
}

// isPlaced reports whether the line says where or how it is served.
func (in *fields) isPlaced() bool { return in.Proxy != nil || in.Worker != nil || in.Fail != "" }

// check refuses a request that no proxy would show to the filter.
func (in *fields) check() error {
	if _, err := netip.ParseAddr(in.ClientIP); in.ClientIP != "" && err != nil {
		return fmt.Errorf("client_ip: %q is no IP address", in.ClientIP)
	}
	if strings.ContainsFunc(in.Method, notInToken) {
		return fmt.Errorf("method: %q is none", in.Method)
	}
	if in.Path != "" && (in.Path[0] != '/' || strings.ContainsFunc(in.Path, unicode.IsControl)) {
		return fmt.Errorf("path: %q is none: it begins with / and holds no control characters", in.Path)
	}
	for name := range in.Headers {
		if name == "" || strings.ContainsFunc(name, notInToken) {
			return fmt.Errorf("headers: %q is no header name", name)
		}
	}
	return nil
}

// notInToken reports a character that no token of HTTP has, such as a method or a
// header's name.
func notInToken(r rune) bool {
	return r <= ' ' || r >= 0x7F || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}

func (r *reader) readPolicyLine(l line) (line, error) {
	if l.request.File == "" {
		return line{}, errors.New("file: op policy needs the file of the new policy")
	}
	p, err := r.policyIn(l.request.File)
	if err != nil {
		return line{}, err
	}
	l.policy, r.current = p, p
	return l, nil
}

// policyIn reads a policy beside the requests or below, once.
func (r *reader) policyIn(file string) (*policyFile, error) {
	if p := r.policies[file]; p != nil {
		return p, nil
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
	if r.bytes += len(text); r.bytes > maxPolicyBytes {
		return nil, fmt.Errorf("file: the policies of one run have more than %d bytes together", maxPolicyBytes)
	}
	p, err := readPolicy(filepath.Join(r.dir, file), text)
	if err == nil {
		r.policies[file] = p
	}
	return p, err
}

func (r *reader) checkOperation(in *fields, kind takes) error {
	switch {
	case !kind.key && in.Key != nil:
		return fmt.Errorf("key: op %s acts on whole rules", in.Op)
	case !kind.n && in.N != nil:
		return fmt.Errorf("n: op %s takes none", in.Op)
	case in.Op == "set" && in.N == nil:
		return errors.New("n: op set needs the units to set")
	case !kind.window && in.Window != "":
		return fmt.Errorf("window: op %s takes none", in.Op)
	case in.Rule == "" && !kind.key:
		return nil // all rules
	case in.Rule == "":
		return errors.New("rule: an operation needs the name of a rule")
	}
	rules := r.current.policy.Rules
	i := slices.IndexFunc(rules, func(rule policy.Rule) bool { return rule.Name == in.Rule })
	if i < 0 {
		return fmt.Errorf("rule: the policy has no rule %q", in.Rule)
	}
	return in.checkRule(kind, &rules[i])
}

// checkRule refuses an operation that the rule has not.
func (in *fields) checkRule(kind takes, rule *policy.Rule) error {
	switch {
	case rule.Mode == policy.ModeOff:
		return fmt.Errorf("rule: %q is off", in.Rule)
	case kind.key && rule.Scope == policy.ScopeCluster && in.Fail != "":
		return fmt.Errorf("fail: rule %q has scope cluster: no proxy is between this operation and the quota service", in.Rule)
	case kind.key && len(in.Key) != len(rule.Key):
		return fmt.Errorf("key: rule %q has a key of %s, not %d", in.Rule, countParts(len(rule.Key)), len(in.Key))
	case in.Window != "" && rule.LimitNamed(in.Window) < 0:
		return fmt.Errorf("window: rule %q has no window %q", in.Rule, in.Window)
	}
	return nil
}

func countParts(n int) string {
	if n == 1 {
		return "1 part"
	}
	return strconv.Itoa(n) + " parts"
}

func (l *line) readTime(in *fields) error {
	given := 0
	for unit, raw := range map[string]json.RawMessage{"at_ms": in.AtMs, "at_ns": in.AtNs, "at": in.At} {
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
		what := map[reflect.Kind]string{
			reflect.String: "text", reflect.Slice: "text or a list of texts", reflect.Map: "an object",
			reflect.Uint32: "a whole number from 0 to 4294967295",
		}[wrong.Type.Kind()]
		if wrong.Field == "key" && wrong.Type.Kind() == reflect.Slice {
			what = "a list of texts"
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
