// Package simulate runs the compiled filter over requests with given times and writes what
// it decided: one line of JSON for each line of input.
//
// Its invariant: the same input gives the same output, byte for byte, and no output at all if
// a line of it is not valid. It decides nothing: every verdict is the filter's. It must never
// import the filter or the engine.
//
// The way of a simulation: input.go reads all lines and checks them, as line.go decodes them.
// Run has each line happen at its time: proxies.go lets time pass until then, and brings
// requests to the proxies, which share the quota service of cluster.go. output.go writes what
// came of the line. Fleet does the same for requests that do not come as lines, and Explain
// for one request.
package simulate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Options say what to simulate.
type Options struct {
	Wasm     []byte
	Policy   string // the name of its file
	Text     []byte // of the policy
	Requests io.Reader
	Dir      string // holds the policy files that the requests name, itself or below
	Workers  int    // of each proxy
	Proxies  int    // 0 = 1
	Seed     uint64 // of the table's hash
	CacheDir string // keeps the compiled filter; empty = compile anew
	Log      func(string)
}

// Run simulates, and writes to out once all lines are answered. Until then the output is in a
// file that is gone when Run ends.
func Run(ctx context.Context, o Options, out io.Writer) error {
	o.Proxies = max(o.Proxies, 1)
	first, err := readPolicy(o.Policy, o.Text)
	if err != nil {
		return err
	}
	in, err := readInput(ctx, o)
	if err != nil {
		return err
	}
	output, err := os.CreateTemp("", "sluice-simulate-")
	if err != nil {
		return fmt.Errorf("keep the output: %w", err)
	}
	defer func() {
		_ = output.Close()
		_ = os.Remove(output.Name())
	}()
	if err := o.run(ctx, in, first, output); err != nil {
		return err
	}
	if _, err := output.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(out, output)
	return err
}

// run has all lines happen, each at its time.
func (o *Options) run(ctx context.Context, in *lines, first *policyFile, out io.Writer) error {
	s := &simulation{turns: make([]int, o.Proxies)}
	defer s.close()
	if in.firstNs >= 0 {
		if err := s.start(ctx, o, traceReport, first, in.firstNs); err != nil {
			return err
		}
	}
	w := bufio.NewWriter(out)
	var text []byte
	err := in.each(ctx, func(_ int, line []byte) error {
		l, err := in.read(line)
		if err != nil {
			return err
		}
		s.pass(l.ns)
		happened, err := s.happen(l)
		if err != nil {
			return err
		}
		text = append(happened.append(text[:0]), '\n')
		_, err = w.Write(text)
		return err
	})
	return errors.Join(err, w.Flush())
}

// simulation is proxies, and whose turn it is.
type simulation struct {
	proxies
	turn  int   // of the proxies, for lines that name none
	turns []int // of each proxy's workers
}

// happen has a line happen now, and returns what came of it.
func (s *simulation) happen(l *line) (o *output, err error) {
	o = &output{line: l}
	switch l.kind() {
	case policyLine:
		err = s.configure(l.policy)
	case answerLine:
		err = s.answer(l, o)
	case requestLine:
		err = s.request(l, o)
	case operationLine:
		on := l.operation()
		if counters.IsOfCluster(s.policy, on) {
			err = s.operateCluster(l, on, o)
		} else {
			err = s.operate(l, o)
		}
	}
	o.policy = s.policy
	return o, err
}

// request brings a request to a proxy. It stays open for the lines with its answer. If there are none, it
// stays open for as long as rules hold units for it.
func (s *simulation) request(l *line, o *output) error {
	x, err := s.begin(l, l.toRequest())
	if err != nil {
		return err
	}
	if l.isAnswered {
		s.byLines[*l.ID] = x // also a denied one: the lines of its answer do nothing
	}
	staysOpen := !x.Ended() && (l.isAnswered || s.keepForHold(x))
	if s.openRequests() > maxOpen {
		return fmt.Errorf("more than %d requests wait for their answers", maxOpen)
	}
	if staysOpen {
		return o.readVerdict([]byte(x.State()[reportState]), &sim.Response{})
	}
	response, err := x.Finish()
	if err != nil {
		return err
	}
	return o.readVerdict([]byte(response.State[reportState]), response)
}

// operate has a proxy do an operation.
func (s *simulation) operate(l *line, o *output) error {
	x, err := s.begin(l, l.toOperation())
	if err != nil {
		return err
	}
	response, err := x.Finish()
	if err != nil {
		return err
	}
	if response.Status != http.StatusOK {
		var rejected struct{ Error string }
		if json.Unmarshal(response.Body, &rejected) != nil {
			rejected.Error = string(response.Body)
		}
		return fmt.Errorf("op %s: %s", l.Op, rejected.Error)
	}
	if l.Op == opStats {
		o.stats = bytes.TrimSpace(response.Body)
		return nil
	}
	return o.readVerdict(response.Body, response)
}

// begin brings what a line asks to the proxy and the worker that it names, or whose turn it is.
func (s *simulation) begin(l *line, r *sim.Request) (*sim.Exchange, error) {
	proxy := inTurn(l.Proxy, &s.turn, len(s.hosts))
	host := s.hosts[proxy]
	worker := inTurn(l.Worker, &s.turns[proxy], host.Workers())
	if l.Op == opStats { // on a tick the other workers pass on what they have counted
		for other := range host.Workers() {
			if err := host.Tick(other); err != nil {
				return nil, err
			}
		}
	}
	s.cluster.isCut = l.Fail == failQuota
	defer func() { s.cluster.isCut = false }()
	return s.bring(host, worker, r)
}

// inTurn is what the line names, or the next of so many.
func inTurn(named, turn *int, of int) int {
	if named != nil {
		return *named
	}
	next := *turn
	*turn = (next + 1) % of
	return next
}

// keepForHold keeps an open request for as long as rules hold units for it. It reports whether any does.
func (s *simulation) keepForHold(x *sim.Exchange) bool {
	holdNs := s.holdOf(x.State()[reportState])
	if holdNs > 0 {
		s.keepUntil(openRequest{x: x, untilNs: s.now + holdNs})
	}
	return holdNs > 0
}

// holdOf is how long the rules of a verdict hold units without a sign of life.
func (s *simulation) holdOf(report string) (ns int64) {
	var verdict result.Result
	if json.Unmarshal([]byte(report), &verdict) != nil {
		return 0 // readVerdict says so
	}
	for _, matched := range verdict.Rules {
		for i := range s.policy.Rules {
			if r := &s.policy.Rules[i]; r.Name == matched.Rule {
				ns = max(ns, r.HoldNs)
			}
		}
	}
	return ns
}

// answer takes a line's part of an answer through the proxy.
func (s *simulation) answer(l *line, o *output) error {
	id := *l.Answer
	x := s.byLines[id]
	if !x.Ended() { // the request was not denied
		if err := l.answerTo(x, o); err != nil {
			return fmt.Errorf("answer to %q: %w", id, err)
		}
	}
	if l.isLastPart() {
		delete(s.byLines, id)
		s.activeUntil = max(s.activeUntil, s.now+longestLingerNs)
	}
	if !x.Ended() {
		return nil
	}
	settled := x.State()[settledState]
	if settled != "" && !json.Valid([]byte(settled)) {
		return errors.New("the filter does not say how it settled the answer: " + settled)
	}
	if settled != "[]" { // what lingers after its client has left is not settled yet
		o.settled = settled
	}
	return nil
}

// answerTo does what the line says of the answer, in the order of an answer.
func (l *line) answerTo(x *sim.Exchange, o *output) error {
	if l.Status != nil {
		isEnd := l.End != nil && l.Chunk == nil && l.Trailers == nil
		response, err := x.Answer(&sim.Response{Status: int(*l.Status), Headers: sorted(l.Headers)}, isEnd)
		if err != nil {
			return err
		}
		o.headers = response.Headers
	}
	if l.Chunk != nil {
		if err := x.Chunk([]byte(*l.Chunk), l.End != nil && l.Trailers == nil); err != nil {
			return err
		}
	}
	switch {
	case l.Trailers != nil:
		return x.Trailers(sorted(l.Trailers))
	case l.Reset != nil && *l.Reset == resetClient:
		return x.Reset(sim.ClientGone)
	case l.Reset != nil:
		return x.Reset(sim.UpstreamReset)
	case l.End != nil && !x.Ended():
		return x.Chunk(nil, true)
	}
	return nil
}
