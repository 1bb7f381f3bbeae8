// Package examples holds policies to start from. It must never import another
// package.
package examples

import _ "embed"

// Quickstart is the policy that sluice quickstart pushes.
//
//go:embed quickstart.yaml
var Quickstart []byte
