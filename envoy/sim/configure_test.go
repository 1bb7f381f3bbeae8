package sim_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

func TestConfigureReachesEveryThread(t *testing.T) {
	b := setUp(t, workers(2))
	require.NoError(t, b.Configure([]byte("second")))
	require.Equal(t, []string{
		"-2 configure second",
		"0 configure second", "0 done first",
		"1 configure second", "1 done first",
		"-1 configure second", "-1 done first",
	}, b.heard(), "the new one is up before the old one ends")
	require.Equal(t, []string{"second"}, b.do(1, "config"))
	require.NoError(t, b.Configure([]byte("second")))
	require.Empty(t, b.heard(), "equal bytes are not applied again")
}

func TestRefusedConfigurationChangesNothing(t *testing.T) {
	for config, want := range map[string]struct {
		cause string
		log   string
	}{
		"refuse=because set=x": {"proxy_on_configure returned false", "refused: because"},
		"panic=boom":           {"proxy_on_configure", "fatal error: wasi_snapshot_preview1.poll_oneoff"},
	} {
		t.Run(config, func(t *testing.T) {
			b := setUp(t)
			err := b.Configure([]byte(config))
			var refused *sim.Refused
			require.ErrorAs(t, err, &refused)
			require.Contains(t, refused.Cause.Error(), want.cause)
			require.Contains(t, refused.Error(), want.log)
			for _, line := range b.heard() {
				require.Contains(t, line, "-2 ", "no worker has seen it")
			}
			require.Equal(t, []string{"first"}, b.do(0, "config"))
			require.NoError(t, b.Configure([]byte("third")))
			require.Equal(t, []string{"third"}, b.do(0, "config"))
		})
	}
}

// A host without a running configuration says so, and a closed one starts no VM: its filter may be gone.
func TestNothingIsConfigured(t *testing.T) {
	h, err := sim.New(t.Context(), sim.Options{
		Wasm: guest, VMConfiguration: []byte("refuse"), CacheDir: buildtest.CacheDir(),
	})
	require.NoError(t, err)
	require.ErrorContains(t, h.Configure(nil), "proxy_on_vm_start returned false")
	_, err = h.Serve(0, &sim.Request{})
	require.EqualError(t, err, "serve on worker 0: nothing is configured")
	require.EqualError(t, h.ConfigureWorker(0, nil), "configure worker: nothing is configured")
	h.Close()
	for _, err := range []error{h.Configure([]byte("two")), h.ConfigureWorker(0, nil), h.Replace(guest, nil)} {
		require.EqualError(t, err, "the host is closed")
	}
}

func TestTrialSharesTheStore(t *testing.T) {
	b := setUp(t)
	require.Error(t, b.Configure([]byte("set=k refuse=x")))
	value, _, ok := b.Shared().Get("k")
	require.True(t, ok, "what a trial writes stays: a filter must not write before it is in use")
	require.Equal(t, "configured", string(value))
}

func TestOldConfigurationServesItsRequests(t *testing.T) {
	b := setUp(t)
	res := b.serve(0, "on", header("x-then", "config"), upstream(func() {
		require.NoError(t, b.Configure([]byte("second")))
		require.Equal(t, []string{"second"}, b.do(0, "config"), "another request meanwhile")
		for _, line := range b.heard() {
			require.NotContains(t, line, "0 done")
		}
	}))
	require.Contains(t, res.Headers, [2]string{"x-then", "first"})
	require.Equal(t, []string{"0 done first"}, b.heard(), "it ends with its last request")
}

func TestReplaceKeepsTheStore(t *testing.T) {
	b := setUp(t, workers(2))
	require.Equal(t, []string{"1", "ok"}, b.do(0, "version;set k v 0"))
	res := b.serve(0, "on", header("x-then", "version"), upstream(func() {
		require.NoError(t, b.Replace(second, []byte("first")))
		require.Equal(t, []string{"2", "v 1"}, b.do(0, "version;get k"))
	}))
	require.Contains(t, res.Headers, [2]string{"x-then", "1"})
	heard := b.heard()
	require.Equal(t, "0 done first", heard[len(heard)-1], "the old VM ends with its last request")

	require.NoError(t, b.Replace(second, []byte("first")))
	require.Empty(t, b.heard(), "it is the same")
	require.NoError(t, b.Replace(second, []byte("second")))
	require.ErrorContains(t, b.Replace([]byte("no wasm"), []byte("x")), "compile module")
	require.Error(t, b.Replace(guest, []byte("refuse=x")))
	require.Equal(t, []string{"2", "second"}, b.do(0, "version;config"))
}

func TestAllocatorCallsNobody(t *testing.T) {
	b := setUp(t)
	require.Equal(t, 503, b.serve(0, "wild;get no;header x-ask").Status)
	require.Contains(t, strings.Join(b.heard(), "\n"),
		"restricted_callback: proxy_get_current_time_nanoseconds is not allowed while the VM allocates memory")
}

func TestWorkerMayFailWhereTheTrialDidNot(t *testing.T) {
	b := setUp(t, workers(2))
	require.NoError(t, b.Failed(0))
	require.NoError(t, b.Configure([]byte("once")), "the update was taken")
	require.EqualError(t, b.Failed(0), "worker 0: no configuration runs")
	require.Equal(t, 503, b.serve(0, "config").Status)
	require.NoError(t, b.Configure([]byte("third")))
	require.Equal(t, []string{"third"}, b.do(0, "config"))
	require.NoError(t, b.Failed(0))
}

// A worker that refuses a configuration ends it, in the VM that ran another one and in a new one: it never ticks.
func TestConfigurationThatAWorkerRefusedEnds(t *testing.T) {
	b := setUp(t)
	for _, endsBefore := range [][]string{{"0 done first"}, nil} {
		require.Error(t, b.ConfigureWorker(0, []byte("tick=1000 refuse=x")))
		want := []string{
			"0 configure tick=1000 refuse=x", "0 refused: x",
			"0 error start of filter: proxy_on_configure returned false",
		}
		require.Equal(t, append(append(want, endsBefore...), "0 done tick=1000 refuse=x"), b.heard())
		require.NoError(t, b.Tick(0))
		require.Empty(t, b.heard())
		_, ok := b.Next()
		require.False(t, ok, "nothing is due")
	}
}

func TestStoreIsSharedByVMID(t *testing.T) {
	store := sim.NewStore()
	in := func(vmID string) func(*sim.Options) { return func(o *sim.Options) { o.VMID, o.Store = vmID, store } }
	a, same := setUp(t, in("a")), setUp(t, in("a"))
	other := setUp(t, in("b"))
	a.do(0, "set k v 0")
	require.Equal(t, []string{"v 1"}, same.do(0, "get k"))
	require.Equal(t, []string{"!1"}, other.do(0, "get k"))
	a.Close()
	require.Equal(t, []string{"v 1"}, same.do(0, "get k"))
}

func TestPanicEndsTheVMOnly(t *testing.T) {
	b := setUp(t, workers(2))
	b.do(0, "set k v 0")
	res := b.serve(0, "panic")
	require.True(t, res.Local)
	require.Equal(t, 503, res.Status)
	require.Equal(t, "wasm_fail_stream", res.Details)
	require.Equal(t, "0 error fatal error: wasi_snapshot_preview1.poll_oneoff", b.heard()[0],
		"Go sleeps before it prints a panic, and an old host has no sleep: the message is lost")
	require.ErrorContains(t, b.Failed(0), "vm failed in proxy_on_request_headers")
	require.Equal(t, 503, b.serve(0, "get k").Status)
	require.Equal(t, 14, b.serve(0, "", header("content-type", "application/grpc")).GRPCStatus)
	require.Equal(t, []string{"v 1"}, b.do(1, "get k"), "the other worker goes on")

	b.at(1e9)
	require.Equal(t, []string{"v 1", "first"}, b.do(0, "get k;config"))
	require.Equal(t, 503, b.serve(1, "panic").Status)
	require.NoError(t, b.Configure([]byte("first")))
	require.Equal(t, []string{"first"}, b.do(1, "config"), "the same configuration starts it anew")
}

// A failed VM is made anew by the first request that comes a second after its last start,
// so by the next one where it has run for longer.
func TestFailedVMIsReloaded(t *testing.T) {
	b := setUp(t, workers(2))
	require.NoError(t, b.Configure([]byte("veto=k")))
	for _, step := range []struct {
		atMs                      int64
		worker                    int
		do                        string
		status                    int
		success, failure, backoff uint64
	}{
		{0, 0, "panic", 503, 0, 0, 0},
		{999, 0, "config", 503, 0, 0, 1},
		{1000, 0, "config", 200, 1, 0, 1},
		{5000, 0, "panic", 503, 1, 0, 1},
		{5000, 0, "panic", 503, 2, 0, 1},
		{5999, 0, "config", 503, 2, 0, 2},
		{5999, 1, "set k no 0", 200, 2, 0, 2},
		{6000, 0, "config", 503, 2, 1, 2},
		{6500, 1, "set k yes 0", 200, 2, 1, 2},
		{6999, 0, "config", 503, 2, 1, 3},
		{7000, 0, "config", 200, 3, 1, 3},
	} {
		b.at(step.atMs * 1e6)
		require.Equal(t, step.status, b.serve(step.worker, step.do).Status, "%+v", step)
		require.Equal(t, map[string]uint64{
			"vm_reload_success": step.success, "vm_reload_failure": step.failure, "vm_reload_backoff": step.backoff,
		}, b.Reloads(), "%+v", step)
	}
}

func TestEndWhileARequestIsUnderWay(t *testing.T) {
	b := setUp(t)
	require.Equal(t, 503, b.serve(0, "on", upstream(func() {
		b.serve(0, "panic")
		b.at(1e9)
		require.Equal(t, []string{"first"}, b.do(0, "config"))
	})).Status)
	require.Equal(t, []string{"first"}, b.do(0, "config"))
	require.Equal(t, 503, b.serve(0, "on", upstream(b.Close)).Status)
	require.Equal(t, 503, b.serve(0, "get k").Status)
}

// module writes a module that imports functions of one signature each and
// exports functions without parameters.
func module(imports [][3]string, exports ...string) []byte {
	section := func(id byte, items [][]byte) []byte {
		body := binary.AppendUvarint(nil, uint64(len(items)))
		for _, item := range items {
			body = append(body, item...)
		}
		return append(binary.AppendUvarint([]byte{id}, uint64(len(body))), body...)
	}
	name := func(s string) []byte { return append(binary.AppendUvarint(nil, uint64(len(s))), s...) }
	types := [][]byte{{0x60, 0, 0}}
	var imported, exported [][]byte
	for _, i := range imports {
		params := make([]byte, len(i[2]))
		for p, c := range i[2] {
			params[p] = map[rune]byte{'i': 0x7F, 'I': 0x7E}[c]
		}
		imported = append(imported,
			append(append(append(name(i[0]), name(i[1])...), 0), binary.AppendUvarint(nil, uint64(len(types)))...))
		types = append(types,
			append(append(append([]byte{0x60}, binary.AppendUvarint(nil, uint64(len(params)))...), params...), 1, 0x7F))
	}
	for _, e := range exports {
		exported = append(exported, append(name(e), 0, byte(len(imports))))
	}
	out := []byte("\x00asm\x01\x00\x00\x00")
	out = append(out, section(1, types)...)
	out = append(out, section(2, imported)...)
	out = append(out, section(3, [][]byte{{0}})...)
	out = append(out, section(7, exported)...)
	return append(out, section(10, [][]byte{{2, 0, 0x0B}})...)
}

func TestModulesThatEnvoyCouldNotLoad(t *testing.T) {
	all := []string{"proxy_abi_version_0_2_0", "malloc", "_initialize"}
	for name, c := range map[string]struct {
		wasm []byte
		want string
	}{
		"no ABI version": {module(nil, "malloc", "_initialize"), "it does not export proxy_abi_version_0_2_0"},
		"no allocator": {
			wasm: module(nil, "proxy_abi_version_0_2_0", "_initialize"),
			want: "it exports neither malloc nor proxy_on_memory_allocate",
		},
		"no start": {module(nil, "proxy_abi_version_0_2_0", "malloc"), "it does not export _initialize"},
		"newer WASI": {
			wasm: module([][3]string{{"wasi_snapshot_preview1", "path_filestat_get", "iiiii"}}, all...),
			want: "it imports wasi_snapshot_preview1.path_filestat_get, " +
				"which the oldest supported Envoy (1.36) does not offer",
		},
		"an unknown call": {
			wasm: module([][3]string{{"env", "proxy_log", "iii"}, {"env", "proxy_remove_shared_data", "ii"}}, all...),
			want: "it imports env.proxy_remove_shared_data",
		},
		"another signature": {
			wasm: module([][3]string{{"env", "proxy_log", "iI"}}, all...),
			want: "it imports env.proxy_log with parameters (i32 i64), Envoy offers (i32 i32 i32)",
		},
		"something else": {[]byte("x"), "compile module"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sim.New(t.Context(), sim.Options{Wasm: c.wasm})
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestConfigureWorkerReachesOneThread(t *testing.T) {
	b := setUp(t, workers(2))
	require.NoError(t, b.ConfigureWorker(1, []byte("second")))
	require.Equal(t, []string{"1 configure second", "1 done first"}, b.heard(), "no trial, and no other thread")
	require.Equal(t, []string{"first"}, b.do(0, "config"))
	require.Equal(t, []string{"second"}, b.do(1, "config"))
	require.NoError(t, b.ConfigureWorker(1, []byte("second")))
	require.Empty(t, b.heard())
	require.NoError(t, b.Configure([]byte("first")))
	require.Equal(t, []string{"first"}, b.do(1, "config"), "the update that all have brings the one back in line")
	require.EqualError(t, b.ConfigureWorker(2, nil), "find worker 2: there are workers 0 to 1")
}
