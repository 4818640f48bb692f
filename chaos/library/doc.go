// Package library holds, as tests, minimal reproductions of what goes wrong on
// bare hashicorp/raft: nothing of this project takes part but a transport and a
// disk for tests. Each passes as long as the fault shows. One that fails after an
// update of the library says that a guard may have become needless; README.md
// lists them.
package library
