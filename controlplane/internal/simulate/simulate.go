// Package simulate runs the compiled filter over requests with given times and
// writes what it decided, one line of JSON for one line of input.
//
// Its invariant: the same input gives the same output, byte for byte, and none at all if a
// line of it is not valid. It decides nothing: every verdict is the filter's. It must never
// import the filter or the engine.
package simulate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options say what to simulate.
type Options struct {
	Wasm     []byte
	Policy   string // the name of its file
	Text     []byte // of the policy
	Requests io.Reader
	Dir      string // holds the policy files that the requests name, itself or below
	Workers  int
	Proxies  int    // 0 = 1
	Seed     uint64 // of the table's hash
	CacheDir string // keeps the compiled filter; empty = compile anew
	Log      func(string)
}

// reportState is the property in which the filter reports verdicts if the
// property traceProperty asks for it.
const (
	reportState   = "sluice.report"
	traceProperty = "sluice.trace"
	traceReport   = "1"
)

// The path and token by which operations reach the filter.
const (
	managePath  = "/.sluice-simulate/"
	manageToken = "simulate"
)

func manageJSON() string {
	sum := sha256.Sum256([]byte(manageToken))
	return `{"path":"` + managePath + `","token_sha256":"` + hex.EncodeToString(sum[:]) + `"}`
}

// Run simulates and writes to out, once all lines are answered: until then the answers are
// in a file that is gone when it ends.
func Run(ctx context.Context, o Options, out io.Writer) error {
	answers, err := os.CreateTemp("", "sluice-simulate-")
	if err != nil {
		return fmt.Errorf("keep answers: %w", err)
	}
	defer func() {
		_ = answers.Close()
		_ = os.Remove(answers.Name())
	}()
	if err := o.run(ctx, answers); err != nil {
		return err
	}
	if _, err = answers.Seek(0, io.SeekStart); err == nil {
		_, err = io.Copy(out, answers)
	}
	return err
}

func (o Options) run(ctx context.Context, out io.Writer) error {
	first, err := readPolicy(o.Policy, o.Text)
	if err != nil {
		return err
	}
	o.Proxies = max(o.Proxies, 1)
	r, err := newReader(ctx, o)
	if err != nil {
		return err
	}
	s := &simulation{turns: make([]int, o.Proxies), interrupted: ctx.Err}
	defer s.close()
	w := bufio.NewWriter(out)
	for err == nil {
		err = s.line(ctx, o, r, first, w)
	}
	if flushed := w.Flush(); errors.Is(err, io.EOF) {
		return flushed
	}
	return err
}

// line reads a line and answers it.
func (s *simulation) line(ctx context.Context, o Options, r *reader, first *policyFile, w *bufio.Writer) error {
	if s.interrupted() != nil {
		return input.ErrInterrupted
	}
	l, err := r.next()
	if err != nil {
		return err
	}
	if l.ID != nil {
		if err := r.foresee(); err != nil {
			return err
		}
		l.answered = r.asked[*l.ID].answered
	}
	if s.policy == nil {
		s.now = l.ns
		if err := s.start(ctx, o, traceReport, first); err != nil {
			return err
		}
	}
	if err := s.step(l, w); err != nil {
		return fmt.Errorf("line %d: %w", r.number, err)
	}
	return nil
}

// start makes the proxies, at the time that s has now.
func (s *simulation) start(ctx context.Context, o Options, trace string, p *policyFile) (err error) {
	if s.cluster, err = newCluster(ctx, func() int64 { return s.now }); err != nil {
		return err
	}
	for i := range o.Proxies {
		if err := s.addProxy(ctx, o, uint64(i), trace); err != nil {
			return err
		}
	}
	return s.configure(p)
}

type simulation struct {
	hosts   []*sim.Host // the proxies
	cluster *cluster
	policy  *policy.Policy // in force
	leases  bool           // some rule of it has scope cluster
	now     int64
	turn    int   // of the proxies, for lines that name none
	turns   []int // of each proxy's workers
	buf     []byte

	open        map[string]*sim.Exchange // requests that wait for their answers, by id
	holding     []holding                // those that no line answers, the first to end first
	activeUntil int64                    // proxies have something to do until then, though nothing is open
	interrupted func() error             // of the context: the user wants no more
}

func (s *simulation) addProxy(ctx context.Context, o Options, number uint64, trace string) error {
	host, err := sim.New(ctx, sim.Options{
		Wasm: o.Wasm, Workers: o.Workers, VMID: "sluice", PluginName: "sluice", Seed: o.Seed + number<<32, CacheDir: o.CacheDir,
		Now:        func() int64 { return s.now },
		Properties: map[string][]byte{traceProperty: []byte(trace)},
		Dial:       s.cluster.dial,
		LogLevel:   sim.Warn,
		Log: func(_ sim.Level, vm int, message string) {
			if vm != sim.Trial {
				o.Log(message)
			}
		},
	})
	if err == nil {
		s.hosts = append(s.hosts, host)
	}
	return err
}

func (s *simulation) close() {
	for _, host := range s.hosts {
		host.Close()
	}
}

func (s *simulation) configure(p *policyFile) error {
	for _, host := range s.hosts {
		if err := host.Configure(p.json); err != nil {
			return err
		}
	}
	s.policy = p.policy
	s.leases = slices.ContainsFunc(p.policy.Rules, func(r policy.Rule) bool { return r.Scope == policy.ScopeCluster })
	return nil
}

func (s *simulation) step(l *line, w *bufio.Writer) error {
	s.pass(l.ns)
	o := output{line: l, policy: s.policy}
	var err error
	switch {
	case l.policy != nil:
		err = s.configure(l.policy)
	case l.Answer != nil:
		err = s.part(l, &o)
	default:
		err = s.answer(l, &o)
	}
	if err != nil {
		return err
	}
	s.buf = append(o.append(s.buf[:0]), '\n')
	_, err = w.Write(s.buf)
	return err
}

// answer has a proxy, or the quota service, answer the line.
func (s *simulation) answer(l *line, o *output) error {
	if on := l.operation(); counters.IsOfCluster(s.policy, on) {
		return s.operate(l, on, o)
	}
	return s.serve(l, o)
}

func (s *simulation) serve(l *line, o *output) error {
	proxy := inTurn(l.Proxy, &s.turn, len(s.hosts))
	host := s.hosts[proxy]
	worker := inTurn(l.Worker, &s.turns[proxy], host.Workers())
	if l.Op == "stats" { // on a tick the other workers pass on what they have counted
		for other := range host.Workers() {
			if err := host.Tick(other); err != nil {
				return err
			}
		}
	}
	s.cluster.cut = l.Fail == failQuota
	x, err := s.begin(host, worker, l.toRequest())
	s.cluster.cut = false
	if err != nil {
		return err
	}
	waits, err := s.keep(l, x)
	switch {
	case err != nil:
		return err
	case waits:
		return s.verdict(l, o, []byte(x.State()[reportState]), &sim.Response{})
	}
	response, err := x.Finish()
	if err != nil {
		return err
	}
	report := []byte(response.State[reportState])
	if l.Op != "" {
		report = response.Body
		if response.Status != http.StatusOK {
			var refused struct{ Error string }
			if json.Unmarshal(report, &refused) != nil {
				refused.Error = string(report)
			}
			return fmt.Errorf("op %s: %s", l.Op, refused.Error)
		}
	}
	if l.Op == "stats" {
		o.stats = bytes.TrimSpace(report)
		return nil
	}
	return s.verdict(l, o, report, response)
}

// inTurn is what the line names, or of so many the next.
func inTurn(named, turn *int, of int) int {
	if named != nil {
		return *named
	}
	next := *turn
	*turn = (next + 1) % of
	return next
}

// verdict reads what the filter said of the line.
func (s *simulation) verdict(l *line, o *output, report []byte, response *sim.Response) error {
	a := &o.answer
	if json.Unmarshal(report, a) != nil || a.Value == nil && a.Allowed == nil || a.Allowed != nil && !*a.Allowed && a.RetryNs == nil {
		return fmt.Errorf("the filter gave no verdict, status %d: %s", response.Status, response.Details)
	}
	if l.Op == "" {
		o.status, o.headers = response.Status, response.Headers
	}
	return nil
}

// operation is the line's operation.
func (l *line) operation() counters.Operation {
	o := counters.Operation{Name: l.Op, Rule: l.Rule, Key: l.Key, N: 1, Window: l.Window, Limits: l.limits()}
	if l.N != nil {
		o.N = *l.N
	}
	return o
}

// toRequest makes the request that the filter sees. An operation is a request
// on the management path.
func (l *line) toRequest() *sim.Request {
	f, _ := faults(l.Fail)
	if l.Op != "" {
		query := url.Values{"rule": {l.Rule}, "key": l.Key, "limit": l.limits()}
		if l.N != nil {
			query.Set("n", strconv.FormatUint(uint64(*l.N), 10))
		}
		if l.Window != "" {
			query.Set("window", l.Window)
		}
		return &sim.Request{
			Method: "POST", Path: path.Join(managePath, "counters", l.Op) + "?" + query.Encode(),
			Headers: [][2]string{{"authorization", "Bearer " + manageToken}}, Faults: f,
		}
	}
	r := &sim.Request{
		Method: l.Method, Host: l.Host, Path: l.Path, ClientIP: l.ClientIP, Route: l.Route, Faults: f,
		Properties: make(map[string][]byte, len(l.Properties)), Metadata: make(map[string]*structpb.Struct, len(l.Metadata)),
	}
	for namespace, values := range l.Metadata {
		r.Metadata[namespace], _ = structpb.NewStruct(values) // JSON always is one
	}
	for name, value := range l.Properties {
		r.Properties[name] = []byte(value)
	}
	r.Headers = sorted(l.Headers)
	r.HasBody = policy.MayHaveBody(l.Method)
	return r
}

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
	if n, err := strconv.ParseUint(count, 10, 31); ok && err == nil {
		return &sim.Faults{CAS: int(n)}, nil
	}
	return nil, fmt.Errorf("fail: %q must be get, set, quota or cas:N", text)
}
