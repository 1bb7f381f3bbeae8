// Command etcd is the etcd server. Go does not build it from its own module, whose
// replacements would be lost.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
