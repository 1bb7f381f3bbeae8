package policytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// Request is a request as a proxy hands it to the filter: its path is normalized and its client's
// address is known. What is empty has the default named.
type Request struct {
	Method   string // GET
	Host     string // localhost
	Path     string // /
	Header   http.Header
	ClientIP string // 127.0.0.1
	Route    string // name of the route

	// JWT has the claims that a filter before this one has verified, by provider.
	JWT map[string]map[string]any
	// Metadata is what other filters have set, by namespace.
	Metadata map[string]map[string]any
	// Properties are what else the proxy knows, by paths such as connection.mtls.
	Properties map[string]string

	Body      string // sets content-length
	BodyBytes int    // in place of Body: its length alone

	Proxy *int  // that gets it, from 0; nil: they get requests in turn
	Fault Fault // while the request is decided

	Answer *Answer // of the upstream; nil: 200 without a body, at once
}

// Fault is what fails while a request is decided.
type Fault string

// The faults.
const (
	QuotaFault Fault = "quota" // the quota service cannot be reached
	GetFault   Fault = "get"   // the filter cannot read counters
	SetFault   Fault = "set"   // the filter cannot write counters
)

// Answer is how the upstream answers a request.
type Answer struct {
	Status  int // 200
	Header  http.Header
	JSON    any    // becomes the body, with content-type application/json
	Body    string // in place of JSON
	Trailer http.Header
	Took    time.Duration // time until the answer
	Broken  Broken        // what ends the request before its answer does
}

// Broken says why an answer does not come, or breaks off behind what there is of it. An Answer with
// neither status nor body does not come.
type Broken string

// The reasons.
const (
	ClientGone      Broken = "client"   // the client disconnects
	UpstreamReset   Broken = "upstream" // the upstream resets the request
	UpstreamTimeout Broken = "timeout"  // the upstream has not begun to answer within the route's time
)

// Verdict is what came of a request.
type Verdict struct {
	Allowed    bool
	Status     int // that the client gets; 0 while the request runs, or if there is no response
	DeniedBy   string
	Reason     string        // why the rule of DeniedBy denied
	RetryAfter time.Duration // of a denial; Never if no wait would help
	Header     http.Header   // of the response
	Body       string        // of the response
	Rules      []Rule        // those that matched, in the policy's order
}

// Never is the RetryAfter of a denial that no wait would end.
const Never time.Duration = -1

// Rule is what one rule made of a request.
type Rule struct {
	Name      string
	Override  string   // name of the override that holds
	Key       []string // a part that the request lacks is empty
	Shadow    bool     // it denies nothing
	Allowed   bool
	Reason    string // why it denied
	Remaining uint32 // after the decision, of the tightest window
	Unlimited bool   // nothing has a limit for this key
	Windows   []Window

	Settled bool   // the answer is known, and what follows of it
	Held    uint32 // units that the request held until its answer
	Charged uint32 // units that the answer cost
	By      string // answer, estimate, cost or none
}

// Rule is what a rule made of the request. It is the zero Rule if the rule did not match.
func (v *Verdict) Rule(name string) Rule {
	i := slices.IndexFunc(v.Rules, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		return Rule{}
	}
	return v.Rules[i]
}

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
	in, err := r.sim()
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

// answer takes an answer through the proxy.
func (r *Running) answer(a *Answer) error {
	body, err := a.body()
	if err != nil {
		return err
	}
	comes := a.Broken == "" || a.Status != 0 || body != ""
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
	if r.Body == "" && comes {
		r.Body = body
	}
	return r.settle()
}

var causes = map[Broken]sim.Cause{
	ClientGone: sim.ClientGone, UpstreamReset: sim.UpstreamReset, UpstreamTimeout: sim.UpstreamTimeout,
}

// Check says what is wrong with an answer that no upstream gives. The error begins with the field,
// as test files have it.
func (a *Answer) Check() error {
	const upgraded, first, last = http.StatusSwitchingProtocols, http.StatusOK, 599
	isBegun := a.Status != 0 || a.Body != "" || a.JSON != nil
	_, isKnown := causes[a.Broken]
	switch {
	case a.Status != 0 && a.Status != upgraded && (a.Status < first || a.Status > last):
		return errors.New("status: is not a status of an answer: it must be from 200 to 599, or 101")
	case a.JSON != nil && a.Body != "":
		return errors.New("body: does not go with json: keep one of the two")
	case a.Broken == "":
		return nil
	case !isKnown:
		return fmt.Errorf("no_answer: must be client, upstream or timeout, not %q", a.Broken)
	case a.Trailer != nil:
		return errors.New("no_answer: does not go with trailers, which end an answer: keep one of the two")
	case isBegun && a.Broken == UpstreamTimeout:
		return errors.New("no_answer: a time-out ends a request before its answer begins: " +
			"remove status and body, or write upstream")
	case !isBegun && a.Header != nil:
		return errors.New("headers: an answer that does not begin has none: write status beside them, or remove them")
	}
	return nil
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

// read reads a verdict, and a response if there is one.
func (r *Running) read(report []byte, response *sim.Response) error {
	v, err := fleet.ReadVerdict(report, response)
	if err != nil {
		return err
	}
	r.Allowed, r.DeniedBy = *v.Allowed, v.DeniedBy
	if !*v.Allowed {
		r.RetryAfter = time.Duration(*v.RetryNs)
		if *v.RetryNs < 0 {
			r.RetryAfter = Never
		}
	}
	r.Status, r.Header = response.Status, header(response.Headers)
	r.Body = string(response.Body)
	r.Rules = r.Rules[:0]
	for i := range v.Rules {
		rule := &v.Rules[i]
		read := Rule{
			Name: rule.Rule, Override: rule.Override, Shadow: rule.Mode == "shadow", Allowed: rule.Allowed,
			Reason: rule.Reason, Unlimited: rule.Remaining == nil, Windows: windowsOf(rule.Windows),
		}
		for _, part := range rule.Key {
			value := ""
			if part != nil {
				value = *part
			}
			read.Key = append(read.Key, value)
		}
		if rule.Remaining != nil {
			read.Remaining = *rule.Remaining
		}
		if rule.Rule == v.DeniedBy {
			r.Reason = rule.Reason
		}
		r.Rules = append(r.Rules, read)
	}
	return nil
}

// settle reads what was charged for the answer.
func (r *Running) settle() error {
	text, err := fleet.Settled(r.exchange)
	if err != nil || text == "" {
		return err
	}
	settled, err := fleet.ReadSettled(text)
	if err != nil {
		return err
	}
	for _, s := range settled {
		for i := range r.Rules {
			if rule := &r.Rules[i]; rule.Name == s.Rule {
				rule.Settled, rule.By = true, s.By
				rule.Held, rule.Charged = s.Held, s.Cost
			}
		}
	}
	return nil
}

// sim is the request as the simulated proxy takes it.
func (r *Request) sim() (*sim.Request, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	in := &sim.Request{
		Method: r.Method, Host: r.Host, Path: r.Path, Headers: fields(r.Header), ClientIP: r.ClientIP, Route: r.Route,
		Properties: map[string][]byte{}, Metadata: map[string]*structpb.Struct{},
	}
	length := max(len(r.Body), r.BodyBytes)
	if length > 0 && r.Header.Get("content-length") == "" {
		in.Headers = append(in.Headers, [2]string{"content-length", strconv.Itoa(length)})
	}
	in.HasBody = length > 0 || r.Header.Get("content-length")+r.Header.Get("transfer-encoding") != ""
	for name, value := range r.Properties {
		in.Properties[name] = []byte(value)
	}
	all := maps.Clone(r.Metadata)
	if len(r.JWT) > 0 {
		if all == nil {
			all = map[string]map[string]any{}
		}
		claims := maps.Clone(all[accesslog.JWTNamespace])
		if claims == nil {
			claims = map[string]any{}
		}
		for provider, of := range r.JWT {
			claims[provider] = of
		}
		all[accesslog.JWTNamespace] = claims
	}
	for namespace, values := range all {
		var err error
		in.Metadata[namespace], err = structpb.NewStruct(values)
		if err != nil {
			return nil, fmt.Errorf("metadata %s: %w", namespace, err)
		}
	}
	switch r.Fault {
	case GetFault:
		in.Faults = &sim.Faults{Get: true}
	case SetFault:
		in.Faults = &sim.Faults{Set: true}
	case "", QuotaFault:
	default:
		return nil, fmt.Errorf("a request fails by quota, get or set, not %q", r.Fault)
	}
	return in, nil
}

// fields are headers by name, in lower case.
func fields(h http.Header) (list [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			list = append(list, [2]string{strings.ToLower(name), value})
		}
	}
	return list
}

func header(fields [][2]string) http.Header {
	h := http.Header{}
	for _, f := range fields {
		h.Add(f[0], f[1])
	}
	return h
}

// Check says what is wrong with a request that no proxy would show to the filter. The error begins
// as that of an Answer does.
func (r *Request) Check() error {
	described := simulate.Request{
		Method: r.Method, Host: r.Host, Path: r.Path, ClientIP: r.ClientIP, Headers: map[string]simulate.Values{},
	}
	for name, values := range r.Header {
		described.Headers[name] = values
	}
	if r.BodyBytes < 0 || r.BodyBytes > 0 && r.Body != "" {
		return errors.New("body_bytes: it is the length of a body that is not given, from 0")
	}
	return described.Check()
}
