package tests

import (
	"maps"
	"reflect"
	"testing"

	networking "k8s.io/api/networking/v1"
)

// TestPoliciesOfTheProxies: the pods that lead to the leader admit the clients of networkPolicy and no others, since
// they pass connections on to the nodes.
func TestPoliciesOfTheProxies(t *testing.T) {
	client := map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app": "a"}}}
	for name, clients := range map[string][]any{"everyone": {}, "some": {client, client}} {
		all := rendered(t, map[string]any{
			"leaderService": map[string]any{"enabled": true},
			"networkPolicy": map[string]any{"enabled": true, "clients": clients},
		})
		var of *networking.NetworkPolicy
		for _, p := range all.Policies {
			if maps.Equal(p.Spec.PodSelector.MatchLabels, all.Deployment.Spec.Template.Labels) {
				of = p
			}
		}
		if of == nil {
			t.Errorf("%s: no policy selects the proxies: %d policies", name, len(all.Policies))
			continue
		}
		rules := of.Spec.Ingress
		if len(rules) != 1 || len(rules[0].Ports) != 1 || rules[0].Ports[0].Port.StrVal != "http" {
			t.Fatalf("%s: %+v", name, rules)
		}
		if len(rules[0].From) != len(clients) {
			t.Errorf("%s: the proxies admit %+v", name, rules[0].From)
		}
		nodes := all.Policies[all.StatefulSet.Name].Spec.Ingress[1].From
		for _, peer := range rules[0].From {
			if peer.PodSelector.MatchLabels["app"] != "a" || !reflect.DeepEqual(peer, nodes[0]) {
				t.Errorf("%s: the proxies admit %+v, the nodes %+v", name, peer, nodes[0])
			}
		}
	}
	for name, v := range map[string]map[string]any{
		"no proxies":  {},
		"no policies": {"leaderService": map[string]any{"enabled": true}, "networkPolicy": map[string]any{"enabled": false}},
	} {
		if all := rendered(t, v); all.Policies["northstar-leader"] != nil {
			t.Errorf("%s: the proxies have a policy", name)
		}
	}
}
