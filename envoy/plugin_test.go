package envoy

import (
	"bytes"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/wasm"
)

// Envoy gets the same bytes from a control plane each time.
func TestPluginHasGoldenBytes(t *testing.T) {
	for name, p := range map[string]Plugin{
		"defaults": {Wasm: "/lib/sluice.wasm", Policy: []byte(`{"version":1}`)},
		"all": {
			Name: "second", VMID: "other", Runtime: "envoy.wasm.runtime.wamr",
			Wasm: "/a.wasm", Policy: []byte(`{}`), Capabilities: []string{"proxy_log", "proxy_on_configure"},
		},
	} {
		resource, err := p.ExtensionConfig()
		require.NoError(t, err)
		require.NoError(t, resource.ValidateAll())
		text, err := protojson.Marshal(resource)
		require.NoError(t, err)
		var spaced bytes.Buffer // protojson spaces at random
		require.NoError(t, json.Compact(&spaced, text))
		text = bytes.Clone(spaced.Bytes())
		spaced.Reset()
		require.NoError(t, json.Indent(&spaced, text, "", "  "))
		requireGolden(t, filepath.Join("plugin", name+".json"), spaced.Bytes())
		for range 20 {
			again, err := p.ExtensionConfig()
			require.NoError(t, err)
			require.Equal(t, resource.GetTypedConfig().GetValue(), again.GetTypedConfig().GetValue())
		}
	}
}

// A callback that a policy does not need is not allowed. The VM's configuration says so, which makes
// it another VM.
func TestCapabilitiesOfAPolicy(t *testing.T) {
	const (
		all     = "proxy_on_response_headers proxy_on_response_body proxy_on_log"
		answers = "proxy_on_response_body proxy_on_log"
		slots   = "proxy_on_response_headers proxy_on_response_body"
		bodies  = "proxy_on_response_body"
	)
	rule := func(fields string) string {
		return `{"version":1,"rules":[{"name":"a","limits":["9/1s"]},{` + fields + `}]}`
	}
	for policy, unneeded := range map[string]string{
		`{"version":1}`:                               all,
		`{"headers":"none"}`:                          all,
		`{"headers":"ietf"}`:                          answers,
		`{"headers":"both"}`:                          answers,
		`{"headers":`:                                 "",
		rule(`"settle":{}`):                           bodies,
		rule(`"settle":{"to":"request_bytes"}`):       bodies,
		rule(`"settle":{"to":{"header":"c"}}`):        bodies,
		rule(`"algorithm":"concurrency"`):             slots,
		rule(`"algorithm":"token_bucket"`):            all,
		rule(`"cost":{"request_bytes":{}}`):           all,
		rule(`"settle":{"to":"tokens"}`):              "",
		rule(`"settle":{"to":"output_tokens"}`):       "",
		rule(`"settle":{"to":{"trailer":"c"}}`):       bodies,
		rule(`"settle":{"to":"tokens"},"mode":"off"`): all, rule(`"settle":{"to":"tokens"},"mode":"shadow"`): "",
	} {
		resource, err := Plugin{Wasm: "/a.wasm", Policy: []byte(policy)}.ExtensionConfig()
		require.NoError(t, err)
		config := unpack(t, resource).GetConfig()
		//nolint:staticcheck // the field every supported Envoy reads
		allowed := config.GetCapabilityRestrictionConfig().GetAllowedCapabilities()
		want := DefaultCapabilities()
		var without wrapperspb.StringValue
		if unneeded != "" {
			want = slices.DeleteFunc(want, func(name string) bool { return slices.Contains(strings.Fields(unneeded), name) })
			require.NoError(t, config.GetVmConfig().GetConfiguration().UnmarshalTo(&without), policy)
			require.Equal(t, "without "+unneeded, without.GetValue(), policy)
		} else {
			require.Nil(t, config.GetVmConfig().GetConfiguration(), policy)
		}
		require.ElementsMatch(t, want, slices.Collect(maps.Keys(allowed)), policy)
	}
}

func TestPluginRefused(t *testing.T) {
	_, err := Plugin{Policy: []byte(`{}`)}.ExtensionConfig()
	require.ErrorIs(t, err, ErrNoWasm)
	_, err = Plugin{Wasm: "/a.wasm", Policy: []byte{'"', 0xff, '"'}}.ExtensionConfig()
	require.ErrorContains(t, err, "UTF-8")
}

func unpack(t *testing.T, resource *corev3.TypedExtensionConfig) *wasmfilterv3.Wasm {
	t.Helper()
	filter := new(wasmfilterv3.Wasm)
	require.NoError(t, resource.GetTypedConfig().UnmarshalTo(filter))
	return filter
}

// The oldest supported Envoy offers every function that the filter imports, and every callback that
// the filter exports is allowed.
func TestDefaultCapabilities(t *testing.T) {
	allowed := DefaultCapabilities()
	runtime := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	defer runtime.Close(t.Context())
	module, err := runtime.CompileModule(t.Context(), buildtest.Wasm(t))
	require.NoError(t, err)
	for _, function := range module.ImportedFunctions() {
		_, name, _ := function.Import()
		require.Contains(t, allowed, name, "the oldest supported Envoy would refuse to load the filter")
	}
	isCallback := func(name string) bool { return strings.HasPrefix(name, "proxy_on_") }
	exported := slices.DeleteFunc(slices.Clone(wasm.Exports), func(name string) bool { return !isCallback(name) })
	// Those of answers are allowed before the filter exports them.
	isEarly := func(name string) bool { return !needs{}.call(name) && !slices.Contains(exported, name) }
	require.ElementsMatch(t, exported, slices.DeleteFunc(strings.Fields(callbacks), isEarly))
	require.ElementsMatch(t, wasm.Exports, slices.Collect(maps.Keys(module.ExportedFunctions())))
}
