//go:build exactreplay

package sim

import _ "unsafe" // for go:linkname

// deterministic reports that a seed fixes all that happens in a run: this was built with
// the overlay of chaos/overlay, which has these two.
const deterministic = true

//go:linkname bubbleState runtime.bubbleState
var bubbleState uint64

//go:linkname bubbleConstant runtime.bubbleConstant
var bubbleConstant uint64

// seedScheduler seeds the random numbers that decide between goroutines.
func seedScheduler(seed uint64) { bubbleState, bubbleConstant = mix(seed), mix(^seed) }
