package host

import (
	"runtime"
	"slices"
	"strconv"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/describe"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// tickMs is how often metrics are flushed and the tables confirmed.
const tickMs = 1000

// Register makes this VM serve the filter. Call it from init.
func Register() { proxywasm.SetVMContext(&vm{}) }

type vm struct{ types.DefaultVMContext }

func (*vm) NewPluginContext(context uint32) types.PluginContext {
	p := &plugin{context: context}
	plugins[context] = p
	return p
}

// plugins are the configurations, those that failed included, by their contexts.
var plugins = map[uint32]*plugin{}

// plugin is one configuration of the filter in one VM. Several live side by
// side while a configuration changes, so everything it owns hangs on it.
type plugin struct {
	types.DefaultPluginContext
	identity    engine.Identity
	engine      *engine.Engine
	manage      *policy.Manage
	mistakes    mistakes // wrong tokens of management requests
	trace       bool     // report the whole of every verdict
	verdicts    bool     // tell access logs of every verdict
	metrics     metrics
	context     uint32
	fields      []describe.Field // of the request that is decided
	fieldWriter describe.Fields
	idle        []*stream // streams to use again

	details, headers, body []byte // where a denial is put together
	word                   []byte // and a verdict for access logs
	sent                   []describe.Sent
	keep                   []bool

	managePort uint16 // that management requests must come in on, 0 = any

	conflicts int  // see watch
	isSplit   bool // see split
}

// running are the configurations in this VM.
var running []*plugin

// A configuration splits off with a stream that comes after this many ticks that
// found a conflict. A predecessor gets none by then: Envoy makes a new configuration
// known to its workers in two steps, which take milliseconds. conflictFades is how
// many ticks without a conflict undo one with it: of two siblings not every tick
// finds the other, while an owner that was late once is no sibling.
const (
	conflictTicks = 5
	conflictFades = 10
)

// OnPluginStart reads the policy. A refused one is logged with every problem,
// because the reason reaches nobody else: Envoy's own answer never carries it.
func (p *plugin) OnPluginStart(int) (status types.OnPluginStartStatus) {
	status = types.OnPluginStartStatusFailed
	defer func() {
		if r := recover(); r != nil {
			proxywasm.LogCritical("sluice: configure: " + reason(r))
		}
	}()
	arena.reset()
	text, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		proxywasm.LogCritical("sluice: read the plugin configuration: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	pol, ok := readPolicy(text)
	if !ok {
		return types.OnPluginStartStatusFailed
	}
	p.manage = pol.Manage
	name := filterName()
	p.identity = engine.Identity{
		Owner: state.OwnerID(name), SplitOwner: state.OwnerID(name + "\x00" + string(text)),
		ConfiguredNs: theProxy.Now(), Random: fillRandom,
	}
	p.engine = engine.New(pol, &theProxy, p.identity)
	p.fieldWriter.Style = pol.Headers
	p.confine()
	p.mistakes.seed = randomSeed()
	_, p.trace = theProxy.Property("sluice", "trace")
	asked, _ := theProxy.Property("xds", "node", "metadata", "sluice", "verdicts")
	p.verdicts = asked == "all"
	if err := proxywasm.SetTickPeriodMilliSeconds(tickMs); err != nil {
		proxywasm.LogCritical("sluice: set the tick period: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	p.enlist()
	collect(begun)
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
	running = append(running, p)
}

// delist undoes enlist.
func (p *plugin) delist() {
	running = slices.DeleteFunc(running, func(other *plugin) bool { return other == p })
}

// split gives the configuration tables of its own. It is taken for another
// filter of the same name with another policy: a predecessor would have lost no
// window before its successor counted, and got no more streams for long after
// that. Of a listener that is being drained that is not true, and nothing tells
// it from a sibling; it counts apart too.
func (p *plugin) split() {
	defer p.recovered("split")
	p.isSplit = true
	p.engine.Split()
	proxywasm.LogWarn("sluice: another filter of this name has another policy, or this one's listener is being drained: they count apart; give each filter its own name")
}

// OnTick flushes the metrics and keeps the tables registered.
func (p *plugin) OnTick() {
	defer p.recovered("tick")
	arena.reset()
	if p.engine != nil {
		p.engine.Survey()
		p.metrics.flush(p.engine)
		p.engine.Heartbeat()
		p.watch()
	}
	collect(begun)
}

// watch looks whether the configuration has a conflict.
func (p *plugin) watch() {
	if p.engine.HasConflict() {
		p.conflicts += conflictFades
	} else if p.conflicts > 0 {
		p.conflicts--
	}
}

// OnPluginDone ends the configuration.
func (p *plugin) OnPluginDone() bool {
	defer p.recovered("done")
	delete(plugins, p.context)
	p.delist()
	if p.engine != nil {
		p.metrics.flush(p.engine)
		p.forget()
		p.engine.Release()
		p.engine = nil
	}
	collect(behind)
	return true
}

// collect frees what is not in use any more, if so many tenths of what Go's runtime
// means to use are in use. Left to itself the runtime would begin, and hardly come
// to the end: its own goroutines have no time in a filter, which only ever answers
// calls. Until then nothing is freed, and each pointer that is written costs more.
func collect(tenths uint64) {
	if len(running) == 0 {
		return // the VM ends too
	}
	if runtime.ReadMemStats(&memStats); memStats.HeapAlloc/tenths >= memStats.NextGC/10 {
		runtime.GC()
	}
}

const (
	begun  = 7 // the runtime begins no earlier
	behind = 4 // a configuration that has ended is most of it, or there is little
)

var memStats runtime.MemStats

// recovered keeps a panic inside the callback: let out, it would kill the VM
// and with it every stream of the worker. It must be deferred itself.
func (p *plugin) recovered(callback string) {
	if r := recover(); r != nil {
		p.panicked(callback, r)
	}
}

func (p *plugin) panicked(callback string, r any) {
	p.metrics.panics++
	proxywasm.LogCritical("sluice: " + callback + ": panic: " + reason(r))
}

// reason is what somebody panicked with; package fmt, which knows all there is,
// would be a twelfth of the module.
func reason(r any) string {
	switch r := r.(type) {
	case error:
		return r.Error()
	case string:
		return r
	}
	return "a value of another type"
}
