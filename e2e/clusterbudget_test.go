package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

var budgetSeed = flag.Uint64("budget-seed", 1, "begins the random answers that budgets over all proxies are charged")

// fleetPrices are such that no answer costs more than fleetBound.
var fleetPrices = budgetPrices{
	{"gpt-5", [4]string{"26041.666667", "2604.25", "26041.666667", "82304.526749"}},
	{"claude-", [4]string{"20000.5", "1000.000001", "8125.25", "70000"}},
	{"gemini-", [4]string{"20833.333333", "2083.4375", "20833", "41666.708333"}},
	{"eu.amazon.", [4]string{"33333.333333", "1666.675", "48333.325", "66666.666667"}},
	{"", [4]string{"16666.666667", "8333.375", "20833.333333", "50000"}},
}

const (
	fleetBound  = 100
	fleetStream = budgetLimit / fleetBound // streams at once, whose holds are the whole budget
)

// fleetRules charge prices over all proxies: to tenants whose requests hold what an answer can cost,
// and to tenants whose requests hold 1.
var fleetRules = map[string]struct {
	limit string
	held  int64
}{
	"bounded": {fmt.Sprint(budgetLimit, "/", far), fleetBound},
	"low":     {fmt.Sprint(budgetLimit, "/", far), 1},
	"paid":    {fmt.Sprint(paidLimit, "/", paidWindow), 1},
}

const (
	paidLimit  = 100
	paidWindow = 2 * time.Second
)

func fleetPolicy() string {
	policy := "version: 1\nquota: {timeout: 10s}\nrules:\n" // a busy machine answers late
	for _, name := range slices.Sorted(maps.Keys(fleetRules)) {
		policy += `  - name: ` + name + `
    scope: cluster
    on_unavailable: deny
    match: {methods: [POST], headers: {x-rule: ` + name + `}}
    key: [{header: x-user-id}]
    limits: [` + fleetRules[name].limit + `]
    cost: ` + strconv.FormatInt(fleetRules[name].held, 10) + "\n" + fleetPrices.settle()
	}
	return policy
}

// budgetShape is an answer of an API without its counts.
type budgetShape struct {
	path, contentType, model, text string
}

func budgetShapes(t *testing.T) (list []budgetShape) {
	all, err := txtar.ParseFile(filepath.Join("testdata", "budgets.txtar"))
	require.NoError(t, err)
	for _, f := range all.Files {
		head := strings.Split(f.Name+" ", " | ")
		list = append(list, budgetShape{head[1], head[2], strings.TrimSpace(head[3]), string(f.Data)})
	}
	return list
}

// answer writes random counts into the shape.
func (s *budgetShape) answer(dice *rand.Rand) budgetAnswer {
	has := func(class string, below int64) int64 {
		if !strings.Contains(s.text, class) || dice.IntN(4) == 0 {
			return 0
		}
		return dice.Int64N(below)
	}
	return s.with(1+dice.Int64N(1500), has("CACHED", 4000), has("WRITTEN", 1500),
		1+dice.Int64N(500), has("REASONED", 600))
}

// with writes these counts into the shape.
func (s *budgetShape) with(fresh, cached, written, said, reasoned int64) budgetAnswer {
	input, output := fresh+cached+written, said+reasoned
	var counts []string
	for name, n := range map[string]int64{
		"FRESH": fresh, "CACHED": cached, "WRITTEN": written, "INPUT": input,
		"SAID": said, "REASONED": reasoned, "OUTPUT": output, "TOTAL": input + output,
	} {
		counts = append(counts, name, strconv.FormatInt(n, 10))
	}
	a := budgetAnswer{path: s.path, contentType: s.contentType, tokens: tokensOf{fresh, cached, written, output}}
	a.body = strings.NewReplacer(counts...).Replace(s.text)
	a.cost = fleetPrices.cost(s.model, a.tokens)
	if s.contentType != "application/vnd.amazon.eventstream" {
		return a
	}
	lines := a.body
	a.body = ""
	for line := range strings.Lines(lines) {
		if event, wrapped := strings.CutPrefix(line, "chunk "); wrapped {
			a.body += buildtest.InvokedFrame(event)
		} else {
			a.body += buildtest.Frame("event", line)
		}
	}
	return a
}

// budgetEnd is how an answer ends.
type budgetEnd int

const (
	whole   budgetEnd = iota
	fails             // the upstream answers 500
	breaks            // the upstream breaks off after a part
	leaves            // the client leaves after a part
	hurries           // the client leaves before the answer
)

// lastWord ends streams whose counts have all come before.
const lastWord = "data: [DONE]"

// budgetCall is a request of a tenant, and how it ends.
type budgetCall struct {
	budgetAnswer

	ends     budgetEnd
	sent     int    // bytes of the body before it breaks off, or waits for the wave
	seed     uint64 // of its chunks
	ctx      context.Context
	leave    context.CancelFunc
	decide   func()          // says that it is denied, or that the upstream has it
	goesOn   <-chan struct{} // until then the stream waits amid its answer
	admitted atomic.Bool
	status   int
	got      string
}

// budgetFleet is three Envoys and the upstream behind them.
type budgetFleet struct {
	*httptest.Server

	control *controlPlane
	proxies []*proxy
	client  http.Transport
	seed    uint64
	dice    *rand.Rand
	answers []budgetAnswer
	shapes  []budgetShape
	calls   sync.Map // by number
	last    int
	sums    map[string]int64 // charged, by rule
	tokens  map[string]*tokensOf
	runs    atomic.Int32 // streams
	most    atomic.Int32
}

// withoutTimeout has an Envoy wait for answers as long as a test holds them.
var withoutTimeout = replacing("route: {cluster: upstream}", "route: {cluster: upstream, timeout: 0s}")

// startBudgetUpstream starts the upstream. It answers what is not a budget's call as other tests'
// upstream does.
func startBudgetUpstream(t *testing.T) *budgetFleet {
	f := &budgetFleet{
		answers: recordedAnswers(t, fleetPrices, fleetBound), shapes: budgetShapes(t), seed: *budgetSeed,
		sums: map[string]int64{}, tokens: map[string]*tokensOf{},
	}
	for name := range fleetRules {
		f.tokens[name] = &tokensOf{}
	}
	f.dice = rand.New(rand.NewPCG(f.seed, 0))
	f.client.DisableCompression = true
	f.client.MaxIdleConnsPerHost = 2 * fleetStream
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		f.Close()
	})
	return f
}

func (f *budgetFleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, ok := f.calls.Load(r.Header.Get("x-call"))
	if !ok {
		upstream().Config.Handler.ServeHTTP(w, r)
		return
	}
	c := found.(*budgetCall)
	_, _ = io.Copy(io.Discard, r.Body)
	for n := f.runs.Add(1); ; {
		most := f.most.Load()
		if n <= most || f.most.CompareAndSwap(most, n) {
			break
		}
	}
	defer f.runs.Add(-1)
	c.admitted.Store(true)
	c.decide()
	dice := rand.New(rand.NewPCG(c.seed, 0))
	w.Header().Set("content-type", c.contentType)
	switch c.ends {
	case hurries:
		c.leave()
		<-r.Context().Done()
		return
	case fails:
		w.WriteHeader(http.StatusInternalServerError)
	default:
	}
	inChunks(w, c.body[:c.sent], dice)
	<-c.goesOn
	switch c.ends {
	case leaves:
		<-r.Context().Done()
	case breaks:
		panic(http.ErrAbortHandler)
	default:
		inChunks(w, c.body[c.sent:], dice)
	}
}

// budget is one tenant's, and what it must have been charged.
type budget struct {
	*budgetFleet

	rule, tenant string
	held         int64 // by a request
	charged      int64
}

func (f *budgetFleet) budget(rule, tenant string) *budget {
	return &budget{budgetFleet: f, rule: rule, tenant: tenant, held: fleetRules[rule].held}
}

// call draws a call that ends so.
func (b *budget) call(ends budgetEnd) *budgetCall {
	c := &budgetCall{ends: ends, seed: b.dice.Uint64()}
	for again := true; again; {
		if b.dice.IntN(4) == 0 {
			c.budgetAnswer = b.answers[b.dice.IntN(len(b.answers))]
		} else {
			c.budgetAnswer = b.shapes[b.dice.IntN(len(b.shapes))].answer(b.dice)
		}
		again = c.cost > fleetBound
	}
	c.sent = b.dice.IntN(len(c.body) + 1)
	switch ends {
	case fails:
		c.cost, c.tokens = 0, tokensOf{}
	case hurries:
		c.path = "/v1/chat/completions"
		c.estimated(b, "", 0)
	case breaks, leaves:
		if at := strings.Index(c.body, lastWord); at >= 0 { // all counts have come by then
			c.sent = at
			break
		}
		events := 1 + b.dice.IntN(20)
		c.path, c.contentType = "/v1/chat/completions", "text/event-stream"
		c.body = strings.Repeat(`data: {"model":"gpt-5","choices":[{"delta":{"content":"four"}}]}`+"\n\n", events)
		c.sent = len(c.body)
		c.estimated(b, "gpt-5", int64(events))
	default:
	}
	return c
}

// estimated sets what is charged if the answer does not say it: no less than what was held.
func (c *budgetCall) estimated(b *budget, model string, output int64) {
	c.tokens = tokensOf{questionSize / 4, 0, 0, output}
	c.cost = max(fleetPrices.cost(model, c.tokens), b.held)
}

// mixed draws calls of which one in four ends early or fails.
func (b *budget) mixed() (calls []*budgetCall) {
	for range fleetStream {
		ends := whole
		if b.dice.IntN(4) == 0 {
			ends = fails + budgetEnd(b.dice.IntN(4))
		}
		calls = append(calls, b.call(ends))
	}
	return calls
}

// send sends the calls at once over all proxies. Once each of them is denied or amid its answer,
// then is called, and the answers go on. It returns how many calls were admitted.
func (b *budget) send(t *testing.T, calls []*budgetCall, then func()) (admitted int) {
	goesOn := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(goesOn) })
	defer goOn() // if then fails, too: the upstream waits for its answers
	var decided, over sync.WaitGroup
	decided.Add(len(calls))
	for i, c := range calls {
		c.ctx, c.leave = context.WithCancel(t.Context())
		c.decide = sync.OnceFunc(decided.Done)
		c.goesOn = goesOn
		b.last++
		id, to := strconv.Itoa(b.last), b.proxies[i%len(b.proxies)]
		b.calls.Store(id, c)
		over.Go(func() {
			defer c.leave()
			b.visit(c, to, id)
			c.decide()
		})
	}
	decided.Wait()
	then()
	goOn()
	over.Wait()
	for i, c := range calls {
		if !c.admitted.Load() {
			require.Equal(t, denied, c.status, "call %d, seed %d", i, b.seed)
			continue
		}
		admitted++
		b.charged += c.cost
		b.sums[b.rule] += c.cost
		for class, n := range c.tokens {
			b.tokens[b.rule][class] += n
		}
		want := map[budgetEnd]int{whole: allowed, breaks: allowed, leaves: allowed, fails: http.StatusInternalServerError}
		require.Equal(t, want[c.ends], c.status, "call %d, seed %d", i, b.seed)
		if c.ends == whole {
			require.Equal(t, c.body, c.got)
		}
	}
	return admitted
}

func (b *budget) visit(c *budgetCall, to *proxy, id string) {
	r, err := http.NewRequestWithContext(c.ctx, http.MethodPost, "http://"+to.address+c.path,
		strings.NewReader(strings.Repeat("x", questionSize)))
	if err != nil {
		return
	}
	r.Header.Set("x-rule", b.rule)
	r.Header.Set("x-user-id", b.tenant)
	r.Header.Set("x-call", id)
	res, err := b.client.RoundTrip(r)
	if err != nil {
		return
	}
	defer res.Body.Close()
	c.status = res.StatusCode
	if c.ends == leaves && c.status == allowed {
		_, _ = io.CopyN(io.Discard, res.Body, int64(c.sent)) // the proxy has seen it, too
		<-c.goesOn
		return
	}
	got, _ := io.ReadAll(res.Body)
	c.got = string(got)
}

// requireCharged: in the end nothing is held, and all that the answers cost is charged, once.
func (b *budget) requireCharged(t *testing.T) {
	var used int64
	eventually(t, 12*time.Second, "the holds of "+b.tenant+" to end", func() bool {
		q := b.control.counters(t, "get", "--rule", b.rule, "--key", b.tenant).Quota
		used = int64(q.Windows[0].Used)
		return *q.Held == 0
	})
	require.Equal(t, b.charged, used, "%s, seed %d", b.tenant, b.seed)
}

// overAllProxies: 100 streams at once, of all APIs and divided at random, are charged what their
// answers cost, to the unit, however they end. If they hold what an answer can cost, the budget is
// never exceeded; otherwise what goes over is charged, too.
func (f *budgetFleet) overAllProxies(t *testing.T, c *controlPlane, proxies []*proxy) {
	t.Logf("seed %d", f.seed)
	f.control, f.proxies = c, proxies
	c.apply(t, fleetPolicy())
	began := time.Now()
	all := f.bounded(t) + f.low(t)
	t.Logf("%d streams, at most %d at once, in %s", all, f.most.Load(), time.Since(began).Round(time.Millisecond))
	f.requireMetrics(t)
}

func (f *budgetFleet) bounded(t *testing.T) (all int) {
	b := f.budget("bounded", "bounded")
	var first []*budgetCall
	for range fleetStream {
		first = append(first, b.call(whole))
	}
	all = b.send(t, first, func() {
		require.EqualValues(t, fleetStream, f.runs.Load(), "all streams run at once")
		for _, p := range f.proxies {
			res, _ := p.get(t, "/", ":method", http.MethodPost, "x-rule", b.rule, "x-user-id", b.tenant)
			require.Equal(t, []string{"429", "1"}, []string{strconv.Itoa(res.StatusCode), res.Header.Get("retry-after")})
		}
	})
	require.Equal(t, fleetStream, all)
	b.requireCharged(t)
	for b.charged <= budgetLimit-fleetBound {
		admitted := b.send(t, b.mixed(), func() {})
		require.Positive(t, admitted)
		require.LessOrEqual(t, b.charged, int64(budgetLimit))
		b.requireCharged(t)
		all += admitted
	}
	require.Zero(t, b.send(t, b.mixed(), func() {}))
	b.requireCharged(t)
	return all
}

func (f *budgetFleet) low(t *testing.T) (all int) {
	b := f.budget("low", "low")
	for b.charged < budgetLimit {
		all += b.send(t, b.mixed(), func() {})
		b.requireCharged(t)
	}
	t.Logf("a budget of %d whose requests hold 1 was charged %d", budgetLimit, b.charged)
	require.Zero(t, b.send(t, b.mixed(), func() {}))
	b.requireCharged(t)
	return all
}

// requireMetrics: the proxies' metrics together say what was charged, for which tokens.
func (f *budgetFleet) requireMetrics(t *testing.T) {
	sum := func(name, rule string) (n int64) {
		for _, p := range f.proxies {
			some, _ := p.metric(t, "rate_limit_"+name+"_total", rule)
			n += int64(some)
		}
		return n
	}
	for rule, units := range f.sums {
		want := []int64{units, f.tokens[rule][0], f.tokens[rule][1], f.tokens[rule][2], f.tokens[rule][3]}
		var got []int64
		eventually(t, 20*time.Second, fmt.Sprintf("the metrics of %s to say %d", rule, want), func() bool {
			got = nil
			for _, name := range []string{
				"charged_units", "tokens_input", "tokens_cached", "tokens_cache_write", "tokens_output",
			} {
				got = append(got, sum(name, rule))
			}
			return got[0] >= want[0] && got[4] >= want[4]
		})
		require.Equal(t, want, got, "%s, seed %d", rule, f.seed)
	}
}
