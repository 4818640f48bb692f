package cluster

import (
	"slices"
	"strings"
	"testing"
)

func TestPlanRecovery(t *testing.T) {
	servers := func(voters int, nonVoters ...NodeID) []Server {
		var all []Server
		for i := range voters {
			all = append(all, Server{ID: NodeID("n" + string(rune('1'+i))), Suffrage: Voter})
		}
		for _, id := range nonVoters {
			all = append(all, Server{ID: id, Suffrage: NonVoter})
		}
		return all
	}
	answers := func(all ...Survivor) map[NodeID]Survivor {
		m := map[NodeID]Survivor{}
		for _, s := range all {
			m[s.ID] = s
		}
		return m
	}
	at := func(id NodeID, term, index uint64) Survivor {
		return Survivor{ID: id, Voter: true, Priority: 100, LastTerm: term, LastIndex: index}
	}
	identity := Identity{NodeID: "n1", ClusterID: "C", Generation: Generation{Number: 4}}
	tests := []struct {
		name      string
		confirm   string
		survivors string
		servers   []Server
		answers   map[NodeID]Survivor
		code      Code
		says      string
		chosen    NodeID
		lost      string
		blocked   bool
	}{
		{
			name: "one of three", confirm: "C", survivors: "n1", servers: servers(3), answers: answers(at("n1", 2, 10)),
			chosen: "n1", lost: "n2 n3",
		},
		{
			name: "the freshest of two of five", confirm: "C", survivors: "n1 n2", servers: servers(5),
			answers: answers(at("n1", 2, 10), at("n2", 2, 11)), chosen: "n2", lost: "n3 n4 n5",
		},
		{
			name: "a later term beats a longer log", confirm: "C", survivors: "n1 n2", servers: servers(5),
			answers: answers(at("n1", 3, 10), at("n2", 2, 90)), chosen: "n1", lost: "n3 n4 n5",
		},
		{
			name: "equal logs: priority", confirm: "C", survivors: "n1 n2", servers: servers(5),
			answers: answers(at("n1", 2, 10), Survivor{
				ID: "n2", Voter: true, Priority: 200, LastTerm: 2,
				LastIndex: 10,
			}), chosen: "n2", lost: "n3 n4 n5",
		},
		{
			name: "equal logs: a voter first", confirm: "C", survivors: "n1 n9", servers: servers(3, "n9"),
			answers: answers(at("n1", 2, 10), Survivor{
				ID: "n9", Priority: 200, LastTerm: 2,
				LastIndex: 10,
			}), chosen: "n1", lost: "n2 n3",
		},
		{
			name: "a non-voter with more", confirm: "C", survivors: "n1 n9", servers: servers(3, "n9"),
			answers: answers(at("n1", 2, 10), Survivor{ID: "n9", LastTerm: 2, LastIndex: 11}), chosen: "n9",
			lost: "n2 n3",
		},
		{
			name: "equal in all: the ID", confirm: "C", survivors: "n2 n1", servers: servers(5),
			answers: answers(at("n1", 2, 10), at("n2", 2, 10)), chosen: "n1", lost: "n3 n4 n5",
		},
		{
			name: "only non-voters are left", confirm: "C", survivors: "n9", servers: servers(3, "n9"),
			answers: answers(Survivor{ID: "n9", LastTerm: 2, LastIndex: 11}), chosen: "n9", lost: "n1 n2 n3",
		},
		{
			name: "a quorum answers", confirm: "C", survivors: "n1 n2", servers: servers(3),
			answers: answers(at("n1", 2, 10), at("n2", 2, 10)), code: CodeQuorumExists, says: "2 of 3",
		},
		{
			name: "a quorum answers, though not all are named", confirm: "C", survivors: "n1", servers: servers(3),
			answers: answers(at("n1", 2, 10), at("n3", 2, 10)), code: CodeQuorumExists,
		},
		{
			name: "half is no quorum", confirm: "C", survivors: "n1 n2", servers: servers(4),
			answers: answers(at("n1", 2, 10), at("n2", 2, 10)), chosen: "n1", lost: "n3 n4",
		},
		{
			name: "non-voters are no quorum", confirm: "C", survivors: "n1 n8 n9", servers: servers(3, "n8", "n9"),
			answers: answers(at("n1", 2, 10), Survivor{ID: "n8"}, Survivor{ID: "n9"}), chosen: "n1", lost: "n2 n3",
		},
		{
			name: "the only voter, before it was re-admitted", confirm: "C", survivors: "n1",
			servers: servers(1, "n8", "n9"), answers: answers(at("n1", 2, 10)), blocked: true, chosen: "n1",
			lost: "n8 n9",
		},
		{
			name: "admitted just now, beside the only voter", confirm: "C", survivors: "n1 n2",
			servers: []Server{{ID: "n1", Suffrage: NonVoter}, {ID: "n2", Suffrage: Voter}},
			answers: answers(at("n1", 2, 10),
				at("n2", 2, 10)), blocked: true, code: CodeQuorumExists,
		},
		{
			name: "the only voter", confirm: "C", survivors: "n1", servers: servers(1, "n8", "n9"),
			answers: answers(at("n1", 2, 10)), code: CodeQuorumExists,
		},
		{
			name: "a quorum answers one that was admitted just now", confirm: "C", survivors: "n1", servers: servers(3),
			answers: answers(at("n1", 2, 10), at("n3", 2, 10)), blocked: true, code: CodeQuorumExists,
		},
		{
			name: "the wrong cluster", confirm: "D", survivors: "n1", servers: servers(3),
			answers: answers(at("n1", 2, 10)),
			code:    CodeBadRequest, says: "confirm",
		},
		{
			name: "nobody named", confirm: "C", servers: servers(3), answers: answers(), code: CodeBadRequest,
			says: "survivors",
		},
		{
			name: "a stranger", confirm: "C", survivors: "n1 x", servers: servers(3), answers: answers(at("n1", 2, 10)),
			code: CodeBadRequest, says: "not a member",
		},
		{
			name: "one that does not answer", confirm: "C", survivors: "n1 n2", servers: servers(3),
			answers: answers(at("n1", 2, 10)), code: CodeBadRequest, says: "does not answer",
		},
		{
			name: "one that answers and is not named", confirm: "C", survivors: "n1", servers: servers(5),
			answers: answers(at("n1", 2, 10), at("n4", 2, 10)), code: CodeBadRequest,
			says: "n4 answers and is not named",
		},
		{
			name: "named twice", confirm: "C", survivors: "n1 n1", servers: servers(3), answers: answers(at("n1", 2, 10)),
			code: CodeBadRequest, says: "twice",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request := RecoveryRequest{Confirm: tt.confirm}
			for _, id := range strings.Fields(tt.survivors) {
				request.Survivors = append(request.Survivors, NodeID(id))
			}
			plan, err := PlanRecovery(request, RecoveryInputs{
				Identity: identity, Servers: tt.servers,
				Responses:       tt.answers,
				ElectionBlocked: tt.blocked,
			})
			if tt.code != 0 {
				if !IsCode(err, tt.code) || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if plan.Chosen != tt.chosen || plan.Generation != 5 || strings.ReplaceAll(JoinIDs(plan.Lost), ", ",
				" ") != tt.lost {
				t.Errorf("%+v", plan)
			}
			if len(plan.Survivors) != len(request.Survivors) || !slices.IsSortedFunc(plan.Survivors, compareUpToDate) {
				t.Errorf("survivors %+v", plan.Survivors)
			}
		})
	}
	if _, err := PlanRecovery(RecoveryRequest{}, RecoveryInputs{}); !IsCode(err, CodeBadRequest) {
		t.Errorf("a node without a cluster: %v", err)
	}
}
