package host

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// tickMs is how often metrics are flushed and the tables confirmed.
const tickMs = 1000

// Register makes this VM serve the filter. Call it from init.
func Register() { proxywasm.SetVMContext(&vm{}) }

type vm struct{ types.DefaultVMContext }

func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

// plugin is one configuration of the filter in one VM. Several live side by
// side while a configuration changes, so everything it owns hangs on it.
type plugin struct {
	types.DefaultPluginContext
	engine   *engine.Engine
	manage   *policy.Manage
	trace    bool // report the whole of every verdict
	verdicts bool // tell access logs of every verdict
	metrics  metrics
	idle     []*stream // streams to use again

	details, headers, body []byte // where a denial is put together
	word                   []byte // and a verdict for access logs
	sent                   []engine.Sent
	keep                   []bool

	name        string // of the filter; see filterName
	text        string // the configuration
	outrankedNs int64  // when another configuration of this name was made; 0 = none was
	parted      bool   // see part
}

// handOverNs is how long streams may still come to a configuration that has a
// successor: Envoy makes the new one known to its workers in two steps.
const handOverNs = 5_000_000_000

// running are the configurations in this VM.
var running []*plugin

// OnPluginStart reads the policy. A refused one is logged with every problem,
// because the reason reaches nobody else: Envoy's own answer never carries it.
func (p *plugin) OnPluginStart(int) (status types.OnPluginStartStatus) {
	status = types.OnPluginStartStatusFailed
	defer func() {
		if r := recover(); r != nil {
			proxywasm.LogCritical(fmt.Sprintf("sluice: configure: %v", r))
		}
	}()
	arena.reset()
	text, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		proxywasm.LogCritical("sluice: read the plugin configuration: " + err.Error())
		return
	}
	pol, ok := readPolicy(text)
	if !ok {
		return
	}
	p.name, p.text = filterName(), string(text)
	p.engine, err = engine.New(pol, &theProxy, engine.Identity{
		Owner: state.OwnerID(p.name), ConfiguredNs: theProxy.Now(), Random: fillRandom,
	})
	if err != nil {
		proxywasm.LogCritical("sluice: policy refused: " + err.Error())
		return
	}
	p.manage = pol.Manage
	_, p.trace = theProxy.Property("sluice", "trace")
	asked, _ := theProxy.Property("xds", "node", "metadata", "sluice", "verdicts")
	p.verdicts = asked == "all"
	if err := proxywasm.SetTickPeriodMilliSeconds(tickMs); err != nil {
		proxywasm.LogCritical("sluice: set the tick period: " + err.Error())
		return
	}
	p.enlist()
	return types.OnPluginStartStatusOK
}

func readPolicy(text []byte) (*policy.Policy, bool) {
	doc, err := policy.ParseJSON(text)
	if err != nil {
		proxywasm.LogCritical("sluice: policy refused: " + err.Error())
		return nil, false
	}
	pol, problems, warnings := policy.ReadPushed(doc)
	logProblems(proxywasm.LogCritical, "sluice: policy refused: ", problems)
	logProblems(proxywasm.LogDebug, "sluice: policy: ", warnings)
	return pol, len(problems) == 0 && takes(pol)
}

// maxLogged is how many problems of one policy are logged: validate has them
// all, and every VM that is made the policy of says the same.
const maxLogged = 50

func logProblems(log func(string), before string, problems []policy.Problem) {
	for i := range problems {
		if rest := len(problems) - i; i == maxLogged && rest > 1 {
			log(before + "and " + strconv.Itoa(rest) + " more problems: sluice validate prints them")
			return
		}
		log(before + problems[i].String())
	}
}

// filterName says whose counters this configuration's are: every VM and every
// listener that runs the filter under one name shares them.
func filterName() string {
	name, _ := theProxy.Property("plugin_name")
	name += "\x00"
	root, _ := theProxy.Property("plugin_root_id")
	return name + root
}

// enlist makes the configuration one of those that run.
func (p *plugin) enlist() {
	for _, other := range running {
		if other.name == p.name && other.text != p.text {
			other.outrankedNs = theProxy.Now()
		}
	}
	running = append(running, p)
}

// handOver ends the time in which a stream may come to a configuration that has
// a successor.
func (p *plugin) handOver() {
	defer p.recovered("hand-over")
	if theProxy.Now()-p.outrankedNs > handOverNs {
		p.part()
	}
}

// part gives the configuration tables of its own. It is not the predecessor of
// one made long ago, or no stream would still come to it: it is another filter
// of the same name with another policy.
func (p *plugin) part() {
	p.parted = true
	p.engine.Part(state.OwnerID(p.name + "\x00" + p.text))
	proxywasm.LogWarn("sluice: two filters of one name have different policies: they count apart; give each its own name")
}

// OnTick flushes the metrics and keeps the tables registered.
func (p *plugin) OnTick() {
	defer p.recovered("tick")
	arena.reset()
	if p.engine != nil {
		p.engine.Survey()
		p.metrics.flush(p.engine)
		p.engine.Confirm()
	}
}

// OnPluginDone ends the configuration.
func (p *plugin) OnPluginDone() bool {
	defer p.recovered("done")
	running = slices.DeleteFunc(running, func(other *plugin) bool { return other == p })
	if p.engine != nil {
		p.metrics.flush(p.engine)
		p.forget()
		if p.parted { // no successor takes these tables over
			p.engine.Release()
		}
	}
	return true
}

// NewHttpContext returns the context of a new stream.
func (p *plugin) NewHttpContext(uint32) types.HttpContext {
	if p.outrankedNs != 0 && !p.parted {
		p.handOver()
	}
	if n := len(p.idle); n > 0 {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return s
	}
	return &stream{plugin: p}
}

// recovered keeps a panic inside the callback: let out, it would kill the VM
// and with it every stream of the worker. It must be deferred itself.
func (p *plugin) recovered(callback string) {
	if r := recover(); r != nil {
		p.panicked(callback, r)
	}
}

func (p *plugin) panicked(callback string, r any) {
	p.metrics.panics++
	proxywasm.LogCritical(fmt.Sprintf("sluice: %s: panic: %v", callback, r))
}
