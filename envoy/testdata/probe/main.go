// The probe is a filter that answers every request with its own configuration
// and counts it under a name with a rule in it.
package main

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

func init() { proxywasm.SetVMContext(&vm{}) }

type vm struct{ types.DefaultVMContext }

func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

type plugin struct {
	types.DefaultPluginContext
	configuration []byte
	allowed       proxywasm.MetricCounter
}

func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	configuration, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		proxywasm.LogCritical(err.Error())
		return types.OnPluginStartStatusFailed
	}
	p.configuration = configuration
	p.allowed = proxywasm.DefineCounterMetric("rule=.=per.user-1;.;rate_limit_allowed_total")
	return types.OnPluginStartStatusOK
}

func (p *plugin) NewHttpContext(uint32) types.HttpContext { return &stream{plugin: p} }

type stream struct {
	types.DefaultHttpContext
	plugin *plugin
}

func (s *stream) OnHttpRequestHeaders(int, bool) types.Action {
	s.plugin.allowed.Increment(1)
	if err := proxywasm.SendHttpResponse(200, nil, s.plugin.configuration, -1); err != nil {
		proxywasm.LogCritical(err.Error())
	}
	return types.ActionPause
}
