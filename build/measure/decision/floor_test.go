package decision

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// TestFloor runs the module and holds its host calls: four a request, in the order of a
// limit, with the value it was given going into the swap; two for each field of a response.
func TestFloor(t *testing.T) {
	ctx := t.Context()
	runtime := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer runtime.Close(ctx)
	var calls []string
	text := func(m api.Module, at, length uint32) string {
		bytes, ok := m.Memory().Read(at, length)
		require.True(t, ok)
		return string(bytes)
	}
	// give hands a value over as a host does: into memory it asks for.
	give := func(ctx context.Context, m api.Module, value string, into uint32) uint32 {
		at, err := m.ExportedFunction("proxy_on_memory_allocate").Call(ctx, uint64(len(value)))
		require.NoError(t, err)
		require.True(t, m.Memory().Write(uint32(at[0]), []byte(value)))
		require.True(t, m.Memory().WriteUint32Le(into, uint32(at[0])))
		return uint32(at[0])
	}
	var given []uint32
	_, err := runtime.NewHostModuleBuilder("env").
		NewFunctionBuilder().WithFunc(func(_ context.Context, m api.Module, at uint32) uint32 {
		calls = append(calls, "time")
		require.True(t, m.Memory().WriteUint64Le(at, 42))
		return 0
	}).Export("proxy_get_current_time_nanoseconds").
		NewFunctionBuilder().WithFunc(func(ctx context.Context, m api.Module, kind, at, length, value, size uint32) uint32 {
		if kind == 2 {
			calls = append(calls, "has "+text(m, at, length))
			return 1
		}
		calls = append(calls, "header "+text(m, at, length))
		require.Zero(t, kind, "of the request")
		given = append(given, give(ctx, m, "user-000000", value))
		return 0
	}).Export("proxy_get_header_map_value").
		NewFunctionBuilder().WithFunc(func(ctx context.Context, m api.Module, at, length, value, size, cas uint32) uint32 {
		calls = append(calls, "get "+text(m, at, length))
		given = append(given, give(ctx, m, "forty bytes", value))
		require.True(t, m.Memory().WriteUint32Le(cas, 7))
		return 0
	}).Export("proxy_get_shared_data").
		NewFunctionBuilder().WithFunc(func(_ context.Context, m api.Module, at, length, value, size, cas uint32) uint32 {
		calls = append(calls, "set "+text(m, at, length))
		require.Equal(t, []uint32{40, 7}, []uint32{size, cas})
		now, ok := m.Memory().ReadUint64Le(value)
		require.True(t, ok)
		require.Equal(t, uint64(42), now)
		return 0
	}).Export("proxy_set_shared_data").
		NewFunctionBuilder().WithFunc(func(_ context.Context, m api.Module, kind, at, length, value, size uint32) uint32 {
		calls = append(calls, fmt.Sprint("add ", kind, " ", text(m, at, length), ": ", text(m, value, size)))
		return 0
	}).Export("proxy_add_header_map_value").Instantiate(ctx)
	require.NoError(t, err)
	module, err := runtime.Instantiate(ctx, floor)
	require.NoError(t, err)
	for range 2 {
		result, err := module.ExportedFunction("proxy_on_request_headers").Call(ctx, 2, 5, 1)
		require.NoError(t, err)
		require.Equal(t, []uint64{0}, result, "continue")
	}
	request := []string{"time", "header x-user-id", "get floor/user", "set floor/user"}
	require.Equal(t, append(request, request...), calls)
	require.NotEqual(t, given[0], given[1], "values do not overlap")
	require.Equal(t, given[:2], given[2:], "the arena is empty again")

	calls = nil
	_, err = module.ExportedFunction("proxy_on_response_headers").Call(ctx, 2, 5, 1)
	require.NoError(t, err)
	require.Equal(t, []string{
		"has ratelimit-policy", `add 2 ratelimit-policy: "per-user";q=1000000000;w=31622400`,
		"has ratelimit", `add 2 ratelimit: "per-user";r=999999999;t=31622400`,
		"has x-ratelimit-limit", "add 2 x-ratelimit-limit: 1000000000, 1000000000;w=31622400",
		"has x-ratelimit-remaining", "add 2 x-ratelimit-remaining: 999999999",
		"has x-ratelimit-reset", "add 2 x-ratelimit-reset: 31622400",
	}, calls)
}
