-- Answers whether there was something to close.
if not stored() then return 0 end
finish(ARGV[3])
return 1
