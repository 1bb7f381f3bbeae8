package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/tetratelabs/wazero"
)

// filter is a compiled filter and its hash.
type filter struct {
	*compiler
	module wazero.CompiledModule
	sum    [sha256.Size]byte
}

// compiler compiles filters, each once for all Hosts of this process that keep what is
// compiled in the same directory. It and they stay for the life of the process.
type compiler struct {
	mu      sync.Mutex
	runtime wazero.Runtime
	filters map[[sha256.Size]byte]*filter
}

var compilers = struct {
	sync.Mutex
	of map[string]*compiler // by directory
}{of: map[string]*compiler{}}

// compilerOf returns the compiler of a directory; without one, what is compiled is kept
// in memory alone.
func compilerOf(dir string) (*compiler, error) {
	compilers.Lock()
	defer compilers.Unlock()
	if c := compilers.of[dir]; c != nil {
		return c, nil
	}
	ctx, config := context.Background(), wazero.NewRuntimeConfig()
	if dir != "" {
		cache, err := wazero.NewCompilationCacheWithDir(dir)
		if err != nil {
			return nil, fmt.Errorf("open compilation cache: %w", err)
		}
		config = config.WithCompilationCache(cache)
	}
	c := &compiler{runtime: wazero.NewRuntimeWithConfig(ctx, config), filters: map[[sha256.Size]byte]*filter{}}
	if err := register(ctx, c.runtime); err != nil {
		_ = c.runtime.Close(ctx)
		return nil, err
	}
	compilers.of[dir] = c
	return c, nil
}

// compile returns a filter that Envoy could load.
func (c *compiler) compile(wasm []byte) (*filter, error) {
	sum := sha256.Sum256(wasm)
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.filters[sum]; f != nil {
		return f, nil
	}
	m, err := c.runtime.CompileModule(context.Background(), wasm)
	if err != nil {
		return nil, fmt.Errorf("compile module: %w", err)
	}
	if err := check(m); err != nil {
		_ = m.Close(context.Background())
		return nil, err
	}
	f := &filter{compiler: c, module: m, sum: sum}
	c.filters[sum] = f
	return f, nil
}
