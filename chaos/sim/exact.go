//go:build exactreplay

package sim

import _ "unsafe" // for go:linkname

// exact says that a seed fixes all that happens in a world: this was built with
// the overlay of chaos/overlay, which has these two.
const exact = true

//go:linkname bubbleState runtime.bubbleState
var bubbleState uint64

//go:linkname bubbleConstant runtime.bubbleConstant
var bubbleConstant uint64

// reseed begins the random numbers that decide between goroutines anew.
func reseed(seed uint64) { bubbleState, bubbleConstant = mix(seed), mix(^seed) }
