package host

import (
	"fmt"

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
	engine  *engine.Engine
	manage  *policy.Manage
	trace   bool // report every verdict as a property of its stream
	metrics metrics
	idle    []*stream // streams to use again
}

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
	p.engine, err = engine.New(pol, &theProxy, identity())
	if err != nil {
		proxywasm.LogCritical("sluice: policy refused: " + err.Error())
		return
	}
	p.manage = pol.Manage
	_, p.trace = theProxy.Property("sluice", "trace")
	if err := proxywasm.SetTickPeriodMilliSeconds(tickMs); err != nil {
		proxywasm.LogCritical("sluice: set the tick period: " + err.Error())
		return
	}
	return types.OnPluginStartStatusOK
}

func readPolicy(text []byte) (*policy.Policy, bool) {
	doc, err := policy.ParseJSON(text)
	if err != nil {
		proxywasm.LogCritical("sluice: policy refused: " + err.Error())
		return nil, false
	}
	pol, problems, warnings := policy.ReadPushed(doc)
	for i := range problems {
		proxywasm.LogCritical("sluice: policy refused: " + problems[i].String())
	}
	for i := range warnings {
		proxywasm.LogDebug("sluice: policy: " + warnings[i].String())
	}
	return pol, len(problems) == 0 && takes(pol)
}

// identity says whose counters this configuration's are: every VM and every
// listener that runs the filter under one name shares them.
func identity() engine.Identity {
	name, _ := theProxy.Property("plugin_name")
	owner := name + "\x00"
	root, _ := theProxy.Property("plugin_root_id")
	return engine.Identity{
		Owner:        state.OwnerID(owner + root),
		ConfiguredNs: theProxy.Now(),
		Random:       fillRandom,
	}
}

// OnTick flushes the metrics and keeps the tables registered.
func (p *plugin) OnTick() {
	defer p.recovered("tick")
	arena.reset()
	if p.engine != nil {
		p.metrics.flush(p.engine)
		p.engine.Confirm()
	}
}

// OnPluginDone ends the configuration.
func (p *plugin) OnPluginDone() bool {
	defer p.recovered("done")
	if p.engine != nil {
		p.metrics.flush(p.engine)
	}
	return true
}

// NewHttpContext returns the context of a new stream.
func (p *plugin) NewHttpContext(uint32) types.HttpContext {
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
