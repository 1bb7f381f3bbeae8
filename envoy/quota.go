package envoy

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Quota is how rules of scope cluster reach their quota service in a mesh. It is zero
// for a policy without such rules.
type Quota struct {
	Cluster string        // the mesh's name of the cluster; the policy gets it
	Timeout time.Duration // the policy's
}

func (q Quota) check() error {
	if len(q.Cluster) > policy.MaxClusterBytes || strings.ContainsFunc(q.Cluster, func(c rune) bool { return c < ' ' || c > '~' }) {
		return fmt.Errorf("quota cluster %q: want at most %d characters of ASCII that can be printed, such as outbound|18001||quota.shop.svc.cluster.local",
			q.Cluster, policy.MaxClusterBytes)
	}
	return nil
}

// Connect is for how long the cluster may try to connect: a request waits no longer
// than the timeout.
func (q Quota) Connect() time.Duration { return q.Timeout / 2 }

// put names the cluster in a policy that names another one or none.
func (q Quota) put(document *yaml.Node) {
	if q.Cluster == "" {
		return
	}
	section := member(document, "quota")
	if section == nil {
		if q.Cluster == DefaultQuotaCluster {
			return
		}
		section = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: yaml.FlowStyle}
		document.Content = append(document.Content, word("quota"), section)
	}
	if section.Alias != nil {
		section = section.Alias
	}
	if cluster := member(section, "cluster"); cluster != nil {
		*cluster = *word(q.Cluster)
	} else {
		section.Content = append(section.Content, word("cluster"), word(q.Cluster))
	}
}

// member returns the value of a field, nil if there is none.
func member(object *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(object.Content); i += 2 {
		if object.Content[i].Value == name {
			return object.Content[i+1]
		}
	}
	return nil
}

func word(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}
