// Package simulate runs the compiled filter over requests with given times and writes what
// it decided: one line of JSON for each line of input.
//
// Its invariant: the same input gives the same output, byte for byte, and no output at all if
// a line of it is not valid. It decides nothing: every verdict is the filter's. It must never
// import the filter or the engine.
//
// The way of a simulation: input.go reads all lines and checks them, as line.go decodes them.
// Run has each line happen at its time, on the proxies of package fleet. output.go writes what
// came of the line. Explain asks such a proxy about one request.
package simulate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
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
	first, err := fleet.ReadPolicy(o.Policy, o.Text)
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
func (o *Options) run(ctx context.Context, in *lines, first *fleet.Policy, out io.Writer) error {
	if in.firstNs < 0 {
		return nil
	}
	proxies, err := fleet.New(ctx, o.fleet(), first, in.firstNs)
	if err != nil {
		return err
	}
	defer proxies.Close()
	s := &simulation{Proxies: proxies, byID: map[string]*sim.Exchange{}}
	w := bufio.NewWriter(out)
	var text []byte
	err = in.each(ctx, func(_ int, line []byte) error {
		l, err := in.read(line)
		if err != nil {
			return err
		}
		s.Pass(l.ns)
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

// fleet are the options of the proxies.
func (o *Options) fleet() fleet.Options {
	return fleet.Options{
		Wasm: o.Wasm, Proxies: o.Proxies, Workers: o.Workers, Seed: o.Seed, CacheDir: o.CacheDir, Log: o.Log,
	}
}

// simulation is proxies, and the requests whose answers are on lines still to come.
type simulation struct {
	*fleet.Proxies
	byID map[string]*sim.Exchange
}

// happen has a line happen now, and returns what came of it. For example, of two lines of input:
//
//	{"at_ms":0,"id":"a"}                          request: Begin on a proxy, and open in byID, as it is answered
//	→ {"at_ms":0,"allowed":true,"status":200,"rules":[…],"headers":{}}
//	{"at_ms":9,"answer":"a","status":503,"end":true}         answer: it goes through the request of byID
//	→ {"at_ms":9,"answer":"a","headers":{},"settled":[…]}
func (s *simulation) happen(l *line) (o *output, err error) {
	o = &output{line: l}
	switch l.kind() {
	case policyLine:
		err = s.Configure(l.policy)
	case answerLine:
		err = s.answer(l, o)
	case requestLine:
		err = s.request(l, o)
	case operationLine:
		err = s.operate(l, o)
	}
	o.policy = s.Policy()
	return o, err
}

// request brings a request to a proxy. It stays open for the lines with its answer. If there are none, it
// stays open for as long as rules hold units for it.
func (s *simulation) request(l *line, o *output) error {
	x, err := s.Begin(l.at(), l.toRequest())
	if err != nil {
		return err
	}
	if l.isAnswered {
		s.byID[*l.ID] = x // also a denied one: the lines of its answer do nothing
		s.Run(x)
	}
	staysOpen := !x.Ended() && (l.isAnswered || s.RunForHold(x))
	if s.Open() > fleet.MaxOpen {
		return fmt.Errorf("more than %d requests wait for their answers", fleet.MaxOpen)
	}
	response := &sim.Response{}
	report := fleet.Report(x)
	if !staysOpen {
		response, err = x.Finish()
		if err != nil {
			return err
		}
		report = fleet.ReportIn(response)
	}
	o.result, err = fleet.ReadVerdict(report, response)
	o.status, o.headers = response.Status, response.Headers
	o.usage = response.Body
	return err
}

// operate does an operation.
func (s *simulation) operate(l *line, o *output) error {
	on := l.operation()
	if l.Fail != "" && counters.IsOfCluster(s.Policy(), on) {
		return fmt.Errorf("fail: rule %q has scope cluster: no proxy is between op %s and the quota service", on.Rule, l.Op)
	}
	faults, _ := faults(l.Fail)
	outcome, err := s.Operate(l.at(), on, faults)
	if err != nil {
		return err
	}
	o.result, o.leased = outcome.Result, outcome.Leased
	o.stats = bytes.TrimSpace(outcome.Stats)
	return nil
}

// answer takes a line's part of an answer through the proxy.
func (s *simulation) answer(l *line, o *output) error {
	id := *l.Answer
	x := s.byID[id]
	if !x.Ended() { // the request was not denied
		if err := l.answerTo(x, o); err != nil {
			return fmt.Errorf("answer to %q: %w", id, err)
		}
	}
	if l.isLastPart() {
		delete(s.byID, id)
		s.Done(x)
	}
	if !x.Ended() {
		return nil
	}
	var err error
	o.settled, err = fleet.Settled(x)
	return err
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
