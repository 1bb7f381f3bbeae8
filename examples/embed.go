// Package examples holds policies to start from. It must never import another
// package.
package examples

import _ "embed"

// Quickstart is the policy that sluice quickstart pushes first, Cluster the one that it
// pushes in the end.
var (
	//go:embed quickstart.yaml
	Quickstart []byte
	//go:embed cluster.yaml
	Cluster []byte
)
