"""The jokes themselves, `topic|question|punchline`: common puns in our own words."""

from __future__ import annotations

_TABLE = """
scarecrow|Why did the scarecrow win an award?|Because he was outstanding in his field.
penguin|How does a penguin build its house?|Igloos it together.
knight|Which knight made the round table?|Sir Cumference.
bee|Why do bees have sticky hair?|Because they use honeycombs.
bee|Why do bees hum?|Because they forgot the words.
bee|What did the bee say to the flower?|Hi, honey.
bee|How do bees get to school?|They take the school buzz.
bee|What is a bee's favourite sport?|Rug-bee.
cat|Why was the cat sitting on the computer?|To keep an eye on the mouse.
cat|What is a cat's favourite colour?|Purr-ple.
cat|What do cats eat for breakfast?|Mice crispies.
cat|Why did the cat join the band?|Because it wanted to be the purr-cussionist.
dog|What did the dog say to the tree?|Bark.
dog|Why do dogs run in circles?|Because it is hard to run in squares.
dog|What kind of dog keeps the time?|A watch dog.
dog|Why did the dog sit in the shade?|Because it did not want to be a hot dog.
cow|Why do cows wear bells?|Because their horns do not work.
cow|Where do cows go on Friday night?|To the moo-vies.
cow|What do you get from a pampered cow?|Spoiled milk.
cow|How does a farmer count his cows?|With a cow-culator.
sheep|Where do sheep get their hair cut?|At the baa-baa shop.
sheep|What do sheep do on sunny days?|They have a baa-becue.
duck|Why do ducks have tail feathers?|To cover their butt quacks.
duck|What time does a duck wake up?|At the quack of dawn.
duck|What did the duck say at the shop?|Put it on my bill.
fish|Why are fish so smart?|Because they live in schools.
fish|Why do fish live in salt water?|Because pepper makes them sneeze.
fish|What did the fish say when it hit the wall?|Dam.
fish|What do you give a sick fish?|Vitamin sea.
fish|Where do fish keep their money?|In the river bank.
crab|Why did the crab never share?|Because it was shellfish.
octopus|What makes an octopus laugh?|Ten tickles.
octopus|Why did the octopus win the fight?|Because it was well armed.
shark|What does a shark eat with peanut butter?|Jellyfish.
whale|What is a whale's favourite game?|Swallow the leader.
sea|What did the sea say to the beach?|Nothing, it just waved.
sea|Why did the sea break up with the lake?|Because it was too shallow.
frog|What is a frog's favourite drink?|Croak-a-cola.
frog|Why are frogs so happy?|Because they eat whatever bugs them.
frog|What happens when a frog's car breaks down?|It gets toad away.
snail|What did the snail say on the turtle's back?|Whee.
snail|Where do you find a snail?|Wherever you left it.
snake|What is a snake's favourite subject?|Hiss-tory.
spider|Why are spiders good with computers?|Because they love the web.
spider|What do spiders do on a date?|They go for a spin.
elephant|What time is it when an elephant sits on your fence?|Time to get a new fence.
elephant|Why do elephants never use computers?|Because they are afraid of the mouse.
giraffe|Why are giraffes slow to say sorry?|Because it takes them long to swallow their pride.
lion|Why did the lion eat the tightrope walker?|Because it wanted a balanced meal.
tiger|Why do tigers have stripes?|So that they are not spotted.
leopard|Why can a leopard never hide?|Because it is always spotted.
bear|Why do bears have hairy coats?|Because they would look silly in jackets.
bear|How do bears keep cool?|With bear conditioning.
wolf|What does a wolf call a slow sheep?|Fast food.
rabbit|How do you know that carrots are good for the eyes?|Because rabbits never wear glasses.
rabbit|What is a rabbit's favourite dance?|Hip-hop.
rabbit|How does a rabbit travel?|By hare-plane.
mouse|What do mice do at home?|Mousework.
horse|Why did the horse go to bed?|Because it was feeling colty and sick.
horse|What did the horse say when it fell?|Help, I cannot giddy up.
horse|Where does a horse go when it is ill?|To the horse-pital.
chicken|Why did the chicken cross the road?|To get to the other side.
chicken|Why did the chicken join the band?|Because it had the drumsticks.
chicken|Why did the chicken go to the gym?|To work on its pecks.
egg|Why do eggs tell no jokes?|Because they would crack each other up.
egg|How do eggs leave the highway?|They go through the egg-sit.
owl|Why do owls never date in the rain?|Because it is too wet to woo.
bird|Why do birds fly south?|Because it is too far to walk.
bird|What do you give a sick bird?|Tweetment.
gull|Why do gulls fly over the sea?|Because over the bay they would be bagels.
dinosaur|Why can you not hear a dinosaur in the bathroom?|Because the p is silent.
dinosaur|What do you get when two dinosaurs crash?|Tyrannosaurus wrecks.
pirate|Why is it hard to play cards with a pirate?|Because he stands on the deck.
pirate|What is a pirate's favourite letter?|You think it is R, but it is the C.
pirate|How much did the pirate pay for his earrings?|A buck an ear.
ghost|Why are ghosts bad liars?|Because you can see right through them.
ghost|What is a ghost's favourite fruit?|Boo-berries.
ghost|What room does a ghost not need?|A living room.
skeleton|Why did the skeleton not go to the party?|Because he had no body to go with.
skeleton|Why are skeletons so calm?|Because nothing gets under their skin.
skeleton|What is a skeleton's favourite instrument?|The trom-bone.
vampire|Why did the vampire need medicine?|Because of his coffin.
vampire|What is a vampire's favourite fruit?|A blood orange.
witch|What is a witch's best subject?|Spelling.
mummy|Why do mummies take no holidays?|Because they are afraid to unwind.
snowman|What do snowmen eat for breakfast?|Snowflakes.
snowman|What did one snowman say to the other?|Do you smell carrots?
snowman|How does a snowman get to work?|By icicle.
astronaut|How do astronauts organise a party?|They planet.
astronaut|What is an astronaut's favourite key?|The space bar.
astronaut|Why did the astronaut eat early?|Because it was launch time.
moon|How does the moon cut its hair?|Eclipse it.
moon|How do you know when the moon is full?|When it has had enough to eat.
moon|Why did nobody like the restaurant on the moon?|Because it had no atmosphere.
sun|Why did the sun not go to school?|Because it had a million degrees already.
space|Why is space so clean?|Because of the vacuum.
computer|Why was the computer cold?|Because it left its windows open.
computer|Why did the computer go to the doctor?|Because it had a virus.
computer|What do computers eat for lunch?|Chips.
computer|Why was the computer late for work?|Because it had a hard drive.
computer|How do trees get on a computer?|They log in.
programmer|Why do programmers like dark rooms?|Because light attracts bugs.
programmer|Why did the programmer go broke?|Because he used up all his cache.
programmer|Why do programmers mix up Halloween and Christmas?|Because Oct 31 equals Dec 25.
programmer|What is a programmer's favourite snack?|Cookies.
robot|Why was the robot so tired?|Because it had a hard drive.
robot|What is a robot's favourite music?|Heavy metal.
math|Why was the math book sad?|Because it had too many problems.
math|Why was six afraid of seven?|Because seven eight nine.
math|What did the zero say to the eight?|Nice belt.
math|Why is the obtuse triangle always upset?|Because it is never right.
math|Why do plants hate math?|Because it gives them square roots.
math|Why should you never argue with pi?|Because it goes on forever.
teacher|Why did the teacher wear sunglasses?|Because her students were so bright.
teacher|Why did the music teacher need a ladder?|To reach the high notes.
school|Why did the student eat his homework?|Because the teacher said it was a piece of cake.
school|Why was the broom late for school?|Because it over-swept.
pencil|What did the pencil say to the paper?|I dot my i on you.
pencil|Why did the pencil cross the room?|To get to the point.
book|Why did the book join the police?|Because it wanted to go under cover.
book|What did one book say to the other?|I am just checking you out.
library|What is the tallest building in town?|The library, because it has the most stories.
clock|Why did the boy throw the clock out of the window?|Because he wanted to see time fly.
clock|What does a clock do when it is hungry?|It goes back for seconds.
clock|Why was the clock sent out of class?|Because it tocked too much.
calendar|Why are calendars so popular?|Because they have many dates.
calendar|Why was the calendar nervous?|Because its days were numbered.
bread|Why did the baker make bread?|Because he kneaded the dough.
bread|What did the bread say to the butter?|You are on a roll.
baker|Why did the baker go to work?|Because he needed the dough.
cookie|Why did the cookie go to the doctor?|Because it felt crumby.
cookie|Why did the cookie cry?|Because its mother was a wafer so long.
banana|Why did the banana go to the doctor?|Because it was not peeling well.
banana|Why are bananas never lonely?|Because they hang around in bunches.
tomato|Why did the tomato turn red?|Because it saw the salad dressing.
tomato|What did the big tomato say to the slow tomato?|Ketchup.
lemon|What do you give an injured lemon?|Lemon-aid.
lemon|Why did the lemon stop rolling?|Because it ran out of juice.
orange|Why did the orange stop?|Because it ran out of juice.
grape|What did the grape say when it was stepped on?|Nothing, it just let out a little wine.
strawberry|Why was the strawberry sad?|Because its friends were in a jam.
potato|Why did the potato win the race?|Because it had its eyes on the road.
potato|What do you call a baby potato?|A small fry.
onion|Why did nobody laugh at the onion?|Because the joke made them cry.
corn|What did the baby corn ask the mother corn?|Where is pop corn?
corn|Why should you tell no secrets in a corn field?|Because it is full of ears.
mushroom|Why was the mushroom invited to every party?|Because he was a fun guy.
pumpkin|How do you mend a broken pumpkin?|With a pumpkin patch.
coffee|Why did the coffee call the police?|Because it was mugged.
coffee|How does a coffee say goodbye?|See you latte.
tea|Why did the tea bag go to the gym?|To get strong.
cheese|What cheese is made backwards?|Edam.
cheese|What did the cheese say to the mirror?|Halloumi.
pizza|Do you want to hear a joke about pizza?|Never mind, it is too cheesy.
butter|Do you want to hear a joke about butter?|I had better not spread it.
paper|Do you want to hear a joke about paper?|Never mind, it is tearable.
food|Why did the burger go to the gym?|Because it wanted better buns.
food|What did the plate say to the fork?|Lunch is on me.
ice cream|Why did the ice cream cry?|Because it had a meltdown.
tree|How do trees say hello in spring?|What a re-leaf.
tree|Why did the tree go to the dentist?|Because it needed a root canal.
tree|What did the tree do when the bank closed?|It started its own branch.
flower|What did the big flower say to the small flower?|Hi, bud.
gardener|Why did the gardener quit?|Because his celery was too low.
mountain|Why are mountains so funny?|Because they are hill areas.
weather|What did one raindrop say to the other?|Two is company, three is a cloud.
weather|What do clouds wear under their coats?|Thunderwear.
weather|Why did the wind win the race?|Because it blew past everybody.
music|Why did the piano not open the door?|Because it had lost its keys.
music|What makes music on your head?|A head band.
music|Why was the guitar upset?|Because people picked on it.
drum|What did the drum say to the other drum?|Beat it.
bicycle|Why did the bicycle fall over?|Because it was two tired.
car|What did the traffic light tell the car?|Do not look, I am changing.
car|Why did the car fall asleep?|Because it was exhausted.
train|Why was the train late?|Because it kept getting sidetracked.
train|How does a train eat?|It goes chew chew.
bus|Why did the bus stop?|Because it saw the zebra crossing.
ship|Why did the sailor bring soap?|In case he was washed ashore.
shoe|What kind of shoes do ninjas wear?|Sneakers.
shoe|What did the shoe say to the foot?|You are under arrest for smelling.
hat|What did the hat say to the scarf?|You hang around, I will go ahead.
wall|What did one wall say to the other wall?|I will meet you at the corner.
stairs|Why do you never trust stairs?|Because they are always up to something.
ladder|Why do I not like my step ladder?|Because I never knew my real ladder.
door|When is a door not a door?|When it is ajar.
window|What did the window say to the curtain?|Pull yourself together.
candle|What did the candle say to the cake?|You are on fire today.
blanket|What did the blanket say to the bed?|I have got you covered.
pillow|Why did the pillow cross the road?|To catch its dream.
broom|Why was the broom so tired?|Because it swept all day.
toilet|Why did the toilet paper roll down the hill?|To get to the bottom.
dentist|What time do you go to the dentist?|At tooth-hurty.
dentist|What does the dentist of the year get?|A little plaque.
doctor|Why did the doctor carry a red pen?|In case he had to draw blood.
nurse|Why did the nurse tiptoe?|So that she would not wake the sleeping pills.
farmer|Why did the farmer ride his horse to town?|Because it was too heavy to carry.
chef|Why did the chef go to prison?|Because he beat the eggs.
king|Where does the king keep his armies?|In his sleevies.
king|Why did the king go to the dentist?|To get a crown.
dragon|Why do dragons sleep all day?|So that they can fight knights.
golfer|Why did the golfer bring two pairs of trousers?|In case he got a hole in one.
football|Why was the football field so hot?|Because all the fans left.
tennis|Why are tennis games so loud?|Because each player raises a racket.
money|Why is money called dough?|Because we all knead it.
money|Where do polar bears keep their money?|In a snow bank.
work|Why did the man quit at the calendar factory?|Because he took a day off.
work|Why did the man lose his job at the keyboard factory?|Because he did not put in enough shifts.
mirror|What did the mirror say to the door?|I see what you are doing.
atom|Why can you never trust an atom?|Because they make up everything.
chemist|What do you do with a dead chemist?|You barium.
magnet|What did one magnet say to the other?|I find you very attractive.
glue|How do you read a book about glue?|You cannot put it down.
balloon|Why are balloons so expensive?|Because of inflation.
cloud|Where do clouds go to the toilet?|Anywhere they like.
father|What does a father say to his hungry son?|Hi, Hungry, I am Dad.
"""
JOKES = [
    (topic, question, answer) for topic, question, answer in (line.split("|") for line in _TABLE.strip().splitlines())
]
