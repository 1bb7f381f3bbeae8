package policytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// Running is a request that the upstream has not answered yet.
type Running struct {
	Verdict // so far

	exchange *sim.Exchange
}

// Do brings a request to a proxy, has it answered if it was allowed, and returns what came of it.
func (p *Proxies) Do(r Request) *Verdict {
	p.tb.Helper()
	running := p.Start(r)
	if !running.Allowed {
		return &running.Verdict
	}
	answer := Answer{}
	if r.Answer != nil {
		answer = *r.Answer
	}
	return p.Answer(running, answer)
}

// Start brings a request to a proxy. If it was allowed, it runs until Answer.
func (p *Proxies) Start(r Request) *Running {
	p.tb.Helper()
	p.checkProxy(r.Proxy)
	in, err := r.toSim()
	if err != nil {
		p.tb.Fatalf("%v", err)
	}
	x, err := p.fleet.Begin(fleet.At{Proxy: r.Proxy, QuotaCut: r.Fault == QuotaFault}, in)
	if err != nil {
		p.tb.Fatalf("%v", err)
	}
	running := &Running{exchange: x}
	if !x.Ended() {
		p.fleet.Run(x)
		err = running.read(fleet.Report(x), &sim.Response{})
	} else {
		err = running.finish()
	}
	if err != nil {
		p.tb.Fatalf("%v", err)
	}
	return running
}

// Answer has the upstream answer a running request, and returns what came of it. A request that
// was denied, or has its answer, stays as it is.
func (p *Proxies) Answer(r *Running, a Answer) *Verdict {
	p.tb.Helper()
	if err := a.Check(); err != nil {
		p.tb.Fatalf("answer: %v", err)
	}
	p.Advance(a.Took)
	if r.exchange.Ended() {
		return &r.Verdict
	}
	err := r.answer(&a)
	p.fleet.Done(r.exchange)
	if err != nil {
		p.tb.Fatalf("%v", err)
	}
	return &r.Verdict
}

// answer takes an answer through the proxy:
//
//	Broken  begun       what goes through the proxy
//	no      –           head and body, and Trailer if there is one; the last of them ends the answer
//	yes     no          nothing: the request is reset
//	yes     yes         head and body, none of which ends the answer: then the request is reset
//
// The status of a head is 200 if the answer has none. Check rejects Trailer in an answer that is Broken.
func (r *Running) answer(a *Answer) error {
	body, err := a.body()
	if err != nil {
		return err
	}
	comes := a.Broken == "" || a.isBegun()
	if comes {
		if err := r.answerParts(a, body); err != nil {
			return err
		}
	}
	if a.Broken != "" && !r.exchange.Ended() {
		if err := r.exchange.Reset(causes[a.Broken]); err != nil {
			return err
		}
	}
	if !r.exchange.Ended() {
		return errors.New("the filter has stopped the answer")
	}
	if err := r.finish(); err != nil {
		return err
	}
	if r.Body == "" && comes { // Finish gives only a body that the proxy itself has made
		r.Body = body
	}
	return r.settle()
}

// answerParts takes what there is of an answer through the proxy, part by part.
func (r *Running) answerParts(a *Answer, body string) error {
	isWhole := a.Broken == ""
	head := &sim.Response{Status: a.Status, Headers: fields(a.Header)}
	if head.Status == 0 {
		head.Status = http.StatusOK
	}
	if a.JSON != nil && a.Header.Get("content-type") == "" {
		head.Headers = append(head.Headers, [2]string{"content-type", "application/json"})
	}
	_, err := r.exchange.Answer(head, isWhole && body == "" && a.Trailer == nil)
	if err == nil && body != "" && !r.exchange.Ended() {
		err = r.exchange.Chunk([]byte(body), isWhole && a.Trailer == nil)
	}
	if err == nil && isWhole && a.Trailer != nil && !r.exchange.Ended() {
		err = r.exchange.Trailers(fields(a.Trailer))
	}
	return err
}

func (a *Answer) body() (string, error) {
	if a.JSON == nil {
		return a.Body, nil
	}
	text, err := json.Marshal(a.JSON)
	if err != nil {
		return "", fmt.Errorf("write the answer: %w", err)
	}
	return string(text), nil
}

// finish reads what came of a request that has ended.
func (r *Running) finish() error {
	response, err := r.exchange.Finish()
	if err != nil {
		return err
	}
	return r.read(fleet.ReportIn(response), response)
}
