// The mirror is a filter that writes into the request what it sees of it, for
// the upstream to echo.
package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

func init() { proxywasm.SetVMContext(&vm{}) }

type vm struct{ types.DefaultVMContext }

func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

type plugin struct{ types.DefaultPluginContext }

func (*plugin) NewHttpContext(uint32) types.HttpContext { return &stream{} }

type stream struct{ types.DefaultHttpContext }

func (*stream) OnHttpRequestHeaders(int, bool) types.Action {
	headers, err := proxywasm.GetHttpRequestHeaders()
	if err != nil {
		proxywasm.LogCritical(err.Error())
		return types.ActionContinue
	}
	var saw []string
	for _, h := range headers {
		switch h[0] {
		case ":method", ":authority", ":path", "x-user-id", "x_user_id", "te", "expect", "upgrade", "connection",
			"transfer-encoding", "content-length", "keep-alive", "proxy-connection":
			saw = append(saw, h[0]+"="+strconv.QuoteToASCII(h[1]))
		}
	}
	slices.Sort(saw)
	if err := proxywasm.AddHttpRequestHeader("x-filter-saw", strings.Join(saw, " ")); err != nil {
		proxywasm.LogCritical(err.Error())
	}
	return types.ActionContinue
}
