package envoy

import (
	"fmt"
	"strings"
	"unicode"
)

// ConfigMap is one that the proxies' pods mount, with the filter's binary inside.
type ConfigMap struct {
	Name string // empty = none
	File string // of the binary, on the machine where the ConfigMap is made
}

// MaxConfigMap is how many bytes of data Kubernetes takes in a ConfigMap.
const MaxConfigMap = 1 << 20

// Folder is where the proxy's container has its files.
func (ConfigMap) Folder() string { return "/var/lib/sluice-filter" }

func (c ConfigMap) url() string { return "file://" + c.Folder() + "/sluice.wasm" }

// check refuses a binary from elsewhere, and a path that leaves the comment or the
// shell's quotes around it.
func (c ConfigMap) check() error {
	if c.Name == "" {
		return nil
	}
	if c.File == "" || strings.ContainsFunc(c.File, func(r rune) bool { return r == '\'' || !unicode.IsPrint(r) }) {
		return fmt.Errorf("file %q for the ConfigMap: want a path without quotes and line breaks", c.File)
	}
	return checkName("ConfigMap", c.Name)
}
